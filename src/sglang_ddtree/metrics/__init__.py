"""What a DDTREE server tells of its steps: Prometheus metrics beside SGLang's, and the end of the decode log line.

Read `counts` first; `host.metrics` puts both into SGLang.
"""
