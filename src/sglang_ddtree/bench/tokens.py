"""From prompts to token ids, once for all arms, so that every server reads the same."""

from __future__ import annotations

from collections.abc import Sequence

from .prompt_sets import Prompt


class TokenizerError(RuntimeError):
    """The target's tokenizer cannot be loaded."""


def encode(model: str, prompts: Sequence[Prompt], trust_remote_code: bool) -> tuple[list[list[int]], bool]:
    """Token ids of every prompt, and whether they went through the target's chat template.

    A target without a chat template gets the plain text.

    Raises:
        TokenizerError: `model` has no tokenizer that loads.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise TokenizerError(f"--model {model}: its tokenizer does not load: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        return [list(tokenizer.encode(prompt.text)) for prompt in prompts], False
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        )
        for prompt in prompts
    ], True
