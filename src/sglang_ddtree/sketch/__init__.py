"""`sglang-ddtree tree`: the tree of one decode step, drawn, without a server.

Read `command` first; it asks `models` for the step and `drawing` for its picture.
"""
