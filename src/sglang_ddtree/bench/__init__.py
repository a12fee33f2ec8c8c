"""`sglang-ddtree bench`: real servers, one arm after the other, measured over HTTP.

Read `command` first, then `flow`; `timeline` and `figures` say what each number is.
"""
