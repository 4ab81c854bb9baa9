"""A byte-level tokenizer with a chat template and small stock models, built in memory, for tests of several rooms."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM


CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
SAMPLE = [
    "How do I boil an egg? Put it into boiling water and wait seven minutes.",
    "first question second question alpha answer omega answer",
    "The quick brown fox jumps over the lazy dog, naive cafe, three apples and four pears.",
    "To make bread mix flour, water, salt and yeast, wait, and bake it in a hot oven.",
]


def byte_level_tokenizer(
    vocab_size: int = 400, chat_template: str | None = CHAT_TEMPLATE, texts: Sequence[str] = SAMPLE
) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
    )
    fast.chat_template = chat_template
    return fast


def tiny_llama(vocab_size: int, seed: int = 0, tied: bool = True, **overrides: object) -> LlamaForCausalLM:
    """A dense model of about 50,000 weights."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "pad_token_id": 1,
        "eos_token_id": 0,
        "bos_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**{**shape, **overrides})).eval()


def tiny_moe(vocab_size: int, seed: int = 0, **overrides: object) -> Qwen3MoeForCausalLM:
    """A mixture of four experts."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "eos_token_id": 0,
        "bos_token_id": None,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**shape, **overrides})).eval()
