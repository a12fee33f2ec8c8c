"""The demo pair: SmolLM2-135M-Instruct as target and the DFlash drafter that ships with this package."""

from pathlib import Path

DRAFTER = Path(__file__).parent / "drafter"
