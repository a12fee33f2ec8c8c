"""`sglang-ddtree audit`: greedy texts of a running server against plain decoding's, token for token.

Read `command` first; `compare` says what a near tie and a fault are.
"""
