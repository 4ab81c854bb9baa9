"""Chat templates, judged by what they render.

A mask of assistant tokens is only as good as the template: without generation markers it is all zeros, and with the
markers in the wrong place the token that ends a turn is never trained, so the model never stops. Both leave a loss
that looks healthy. `check_template` renders a probe of two exchanges and raises on either; `encode` renders real rows
and cuts what is too long at a turn border, so that an answer is trained whole or not at all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


IGNORE_INDEX = -100
_PROBE = (
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "alpha answer"},
    {"role": "user", "content": "second question"},
    {"role": "assistant", "content": "omega answer"},
)


@dataclass(frozen=True)
class TemplateReport:
    """What a chat template was found to do.

    Args:
        end_of_turn_token (`str`): The token that closes an assistant turn.
        end_of_turn_id (`int`): Its id.
        probe_tokens (`int`): Tokens of the probe.
        probe_trained_tokens (`int`): Of these, inside the assistant's spans.
    """

    end_of_turn_token: str
    end_of_turn_id: int
    probe_tokens: int
    probe_trained_tokens: int


@dataclass(frozen=True)
class EncodedConversation:
    """One row as tokens.

    Args:
        input_ids (`list[int]`): Token ids.
        labels (`list[int]`): The same ids where the assistant speaks, -100 elsewhere. Not shifted.
        num_turns (`int`): Assistant turns trained.
        lost_tokens (`int`): Tokens cut off with the turns that did not fit.
        lost_turns (`int`): Assistant turns cut off.
    """

    input_ids: list[int]
    labels: list[int]
    num_turns: int
    lost_tokens: int = 0
    lost_turns: int = 0

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that are targets of the loss. A first token is never predicted, so it does not count."""
        return sum(label != IGNORE_INDEX for label in self.labels[1:])


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Renders turns through the chat template.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer with a chat template.
        messages (`Sequence[dict[str, str]]`): Turns with `role` and `content`.

    Returns:
        `tuple[list[int], list[int]]`: Token ids, and 1 where the template says that the assistant speaks.
    """
    output = tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(output["input_ids"]), list(output["assistant_masks"])


def spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Finds the runs of ones.

    Args:
        mask (`Sequence[int]`): Zeros and ones.

    Returns:
        `list[tuple[int, int]]`: Start and stop of each run.
    """
    found, start = [], None
    for index, bit in enumerate([*mask, 0]):
        if bit and start is None:
            start = index
        elif not bit and start is not None:
            found.append((start, index))
            start = None
    return found


def check_template(tokenizer: "PreTrainedTokenizerBase") -> TemplateReport:
    """Makes sure that training on assistant tokens does what it says, by rendering.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer to judge.

    Returns:
        `TemplateReport`: The end-of-turn token and the probe's counts.

    Raises:
        UserError: If there is no template, no generation marker, a turn without a span of its own, a span without the
            end-of-turn token, other words than the assistant's inside a span, a prompt that is rendered differently
            for generation than for training, or more than one BOS.
    """
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.chat_template:
        raise UserError(f"tokenizer = {name}; it has no chat template: set one with generation markers.")
    if not re.search(r"\{%-?\s*generation\b", str(tokenizer.chat_template)):
        raise UserError(
            f"tokenizer = {name}; its chat template has no {{% generation %}} markers, so the loss on assistant "
            "tokens would train on nothing: put the markers around the assistant's turn and its end-of-turn token."
        )
    ids, mask = render(tokenizer, _PROBE)
    found = spans(mask)
    answers = [turn["content"] for turn in _PROBE if turn["role"] == "assistant"]
    if len(found) != len(answers):
        raise UserError(
            f"tokenizer = {name}; its chat template marks {len(found)} assistant spans in a conversation with "
            f"{len(answers)} answers: the markers must go around every assistant turn."
        )
    special = set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
    end_ids = set()
    for (start, stop), answer in zip(found, answers, strict=True):
        # Template authors like a line break after the end-of-turn token; it may be inside the span.
        while stop > start and not tokenizer.decode([ids[stop - 1]]).strip():
            stop -= 1
        if ids[stop - 1] not in special:
            raise UserError(
                f"tokenizer = {name}; its chat template leaves the end-of-turn token outside the generation "
                "markers, so the model would never learn to stop: move the closing marker behind that token."
            )
        end_ids.add(ids[stop - 1])
        words = tokenizer.decode(ids[start : stop - 1]).strip()
        if words != answer:
            raise UserError(
                f"tokenizer = {name}; its chat template marks {words!r} where the assistant says {answer!r}: the "
                "markers must hold the answer and its end-of-turn token, nothing else."
            )
    if len(end_ids) != 1:
        raise UserError(f"tokenizer = {name}; its chat template ends assistant turns with different tokens {end_ids}.")
    prompt = tokenizer.apply_chat_template(
        list(_PROBE[:1]), tokenize=True, return_dict=True, add_generation_prompt=True
    )["input_ids"]
    if ids[: found[0][0]] != list(prompt):
        raise UserError(
            f"tokenizer = {name}; its chat template renders the prompt differently for generation than for training: "
            "with add_generation_prompt it must give exactly the tokens before the first generation marker."
        )
    if tokenizer.bos_token_id is not None and tokenizer.bos_token_id not in end_ids:
        count = ids.count(tokenizer.bos_token_id)
        if count > 1:
            raise UserError(f"tokenizer = {name}; its chat template puts {count} BOS tokens into one conversation.")
    end_id = end_ids.pop()
    return TemplateReport(tokenizer.convert_ids_to_tokens(end_id), end_id, len(ids), sum(mask))


def encode(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[dict[str, str]], max_length: int
) -> EncodedConversation | None:
    """Renders one row, cut at a turn border if it is too long.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer that passed [`check_template`].
        messages (`Sequence[dict[str, str]]`): Checked turns, the assistant's last.
        max_length (`int`): Longest result, in tokens.

    Returns:
        `EncodedConversation` or `None`: `None` when not even the first answer fits whole.

    Raises:
        UserError: If the template marks no assistant token in the row.
    """
    ids, mask = render(tokenizer, messages)
    total, kept = len(ids), list(messages)
    turns = sum(turn["role"] == "assistant" for turn in messages)
    while len(ids) > max_length:
        kept = kept[:-2]
        if not any(turn["role"] == "assistant" for turn in kept):
            return None
        ids, mask = render(tokenizer, kept)
    if not any(mask):
        raise UserError("the chat template marks no assistant token in a row; check its {% generation %} markers.")
    labels = [token if bit else IGNORE_INDEX for token, bit in zip(ids, mask, strict=True)]
    trained = sum(turn["role"] == "assistant" for turn in kept)
    return EncodedConversation(ids, labels, trained, total - len(ids), turns - trained)
