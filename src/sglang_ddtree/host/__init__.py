"""Everything that knows SGLang's inside: names, hooks, options, refusals."""
