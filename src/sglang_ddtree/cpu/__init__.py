"""SGLang on a plain CPU: an out-of-tree platform, active only under ``SGLANG_PLATFORM=ddtree_cpu``."""
