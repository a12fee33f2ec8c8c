"""The checks: each returns what it saw, or says why it failed or does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..audit.compare import Divergence, compare, default_bound
from ..audit.report import about
from ..bench.prompt_sets import BUILT_IN, built_in
from ..client import RequestFailed
from .client import Answer, SmokeClient

OK, FAIL, SKIPPED = "ok", "FAIL", "skipped"
MAX_TOKENS = 48
QUESTION = "Name the days of the week."
PROMPTS = tuple(built_in(name)[0] for name in BUILT_IN)
STREAM_ATTEMPTS = 3


class Failed(Exception):
    """A check failed; the text says what was got and what is expected."""


class NotApplicable(Exception):
    """A check says nothing about this server; the text says why."""


@dataclass(frozen=True)
class Result:
    """One line of the report; `status` is `OK`, `FAIL` or `SKIPPED`."""

    check: str
    status: str
    detail: str


def models(server: SmokeClient) -> str:
    names = server.models()
    if not names:
        raise Failed("/v1/models lists no model")
    return ", ".join(names)


def algorithm(server: SmokeClient) -> str:
    info = server.info()
    found = about(server.base_url, info)
    if found["algorithm"] != "DDTREE":
        raise Failed(
            f"the server runs {found['algorithm']}, not DDTREE: start it with --speculative-algorithm DDTREE"
        )
    return f"DDTREE, budget {info.get('speculative_ddtree_budget')}, SGLang {found['sglang']}"


def chat(server: SmokeClient) -> str:
    try:
        answer = server.chat(_model(server), QUESTION, MAX_TOKENS)
    except RequestFailed as error:
        if error.status == 400 and "chat_template is not set" in str(error):
            raise NotApplicable("the model has no chat template") from error
        raise
    return _ended(answer)


def completion(server: SmokeClient) -> str:
    return _ended(server.completion(_model(server), QUESTION, MAX_TOKENS))


def streaming(server: SmokeClient) -> str:
    """A near tie may turn between two runs of one prompt, a fault of the stream is in all of them."""
    model = _model(server)
    for _ in range(STREAM_ATTEMPTS):
        pieces = server.streamed_completion(model, QUESTION, MAX_TOKENS)
        whole = server.completion(model, QUESTION, MAX_TOKENS)
        streamed = "".join(pieces)
        if streamed == whole.text:
            break
    else:
        raise Failed(f"the streamed text is {streamed[:80]!r}, the other {whole.text[:80]!r}")
    # The prompt's own forward gives the first token alone.
    if len(pieces) < 2 and whole.tokens > 1:
        raise Failed(f"{len(pieces)} chunk: the text did not come in parts")
    return f"{len(pieces)} chunks, the text of the answer without streaming"


def acceptance(server: SmokeClient) -> str:
    answers = [server.verified(server.encode(prompt.text), MAX_TOKENS) for prompt in PROMPTS]
    steps = sum(one.steps for one in answers)
    if not steps:
        raise Failed("no step verified a draft")
    correct = sum(one.correct_drafts for one in answers)
    if not correct:
        raise Failed(f"1.00 tokens per target forward in {steps}: no draft token was accepted")
    return f"{1 + correct / steps:.2f} tokens per target forward, {steps} forwards"


def identity(server: SmokeClient, plain: SmokeClient) -> str:
    bound = default_bound(str(plain.info()["dtype"]))
    near_ties = 0
    for prompt in PROMPTS:
        where = _divergence(server, plain, prompt.text, bound)
        if where is None:
            continue
        if not where.is_near_tie:
            below = "where one text ends" if where.gap is None else f"{where.gap:.4f} nats below"
            raise Failed(
                f"prompt {prompt.source}/{prompt.name}, token {where.position}: {where.other} instead of "
                f"{where.plain}, {below} (bound {bound:g}); sglang-ddtree audit shows more"
            )
        near_ties += 1
    rest = f", {near_ties} left it at a near tie" if near_ties else ""
    return f"{len(PROMPTS) - near_ties} of {len(PROMPTS)} greedy texts are plain decoding's{rest}"


def _divergence(server: SmokeClient, plain: SmokeClient, text: str, bound: float) -> Divergence | None:
    ids = plain.encode(text)
    answer = plain.greedy_with_logprobs(ids, MAX_TOKENS)

    def gap(position: int, token: int) -> float:
        return plain.gap_below_best([*ids, *answer.output_ids[:position]], token)

    return compare(answer, server.greedy(ids, MAX_TOKENS), bound, gap)


def _model(server: SmokeClient) -> str:
    return next(iter(server.models()), "default")


def _ended(answer: Answer) -> str:
    if not answer.tokens or answer.reason not in ("stop", "length"):
        raise Failed(f"{answer.tokens} tokens, finish reason {answer.reason!r}: {answer.text[:80]!r}")
    return f"{answer.tokens} tokens, finish reason {answer.reason!r}: {answer.text[:40]!r}"


# Of a healthy server, in this order; `identity` needs a second one.
CHECKS: tuple[tuple[str, Callable[[SmokeClient], str]], ...] = (
    ("models", models),
    ("algorithm", algorithm),
    ("chat", chat),
    ("completion", completion),
    ("streaming", streaming),
    ("acceptance", acceptance),
)


def perform(name: str, check: Callable[[], str]) -> Result:
    """The check's line, whatever comes of it."""
    try:
        return Result(name, OK, check())
    except NotApplicable as reason:
        return Result(name, SKIPPED, str(reason))
    except (Failed, RequestFailed) as error:
        return Result(name, FAIL, str(error))
