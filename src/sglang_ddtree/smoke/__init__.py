"""`sglang-ddtree smoke`: whether a running server answers, streams and decodes with DDTREE.

Read `command` first; `checks` holds one function per check.
"""
