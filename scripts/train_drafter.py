#!/usr/bin/env python3
"""Train a DFlash drafter for a dense causal LM on one GPU: prompts, generate, train, export, measure.

    scripts/train_drafter.py COMMAND --help

docs/drafters.md has the commands for the demo pair and for an own target. Needs torch, transformers, safetensors
and this package; neither SGLang nor a network.
"""

import sys

from drafter_training.command import main

if __name__ == "__main__":
    sys.exit(main())
