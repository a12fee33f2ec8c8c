"""Training of DFlash drafters; not a part of the package.

Read `command` first. The data comes from `generate` (stored by `data`), `training` minimises `objective` on `model`,
`export` writes what SGLang loads, `measure` says what it accepts.
"""
