"""FLOPs per token, MFU, peaks: science sections 2.1 and 2.3, bugs N2."""

import pytest

from hf_pretrain.planning.compute import (
    FLOP_CONVENTIONS,
    attention_flops_per_token,
    flops_per_token_from_numbers,
    hardware_flops_per_token,
    model_flops_utilisation,
    training_flops_per_token,
)
from hf_pretrain.planning.counting import ModelShape
from hf_pretrain.planning.hardware import DEVICES, find_device, load_devices, peak_flops
from hf_pretrain.utils.errors import UserError


LLAMA_3_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
TINY = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TINY_MOE = {**TINY, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("model", "flops"),
    [
        ({**TINY, "tie_word_embeddings": False}, 826368),
        ({**TINY, "tie_word_embeddings": True}, 826368),
        (TINY_MOE, 1127424),
    ],
)
def test_products_only(model, flops):
    """Bugs N2: the stack's own counter gives 828288, 444288 and 2898816."""
    assert training_flops_per_token(model, convention="matmul") == flops
    assert attention_flops_per_token(model, 16, causal=False) == 24576
    assert training_flops_per_token(model, 16, "matmul_full") == flops + 24576
    assert training_flops_per_token(model, 16, "matmul_causal") == flops + 12288


def test_llama_3_8b_under_every_convention():
    assert training_flops_per_token(LLAMA_3_8B, convention="6n_total") == pytest.approx(4.818157e10, rel=1e-6)
    assert training_flops_per_token(LLAMA_3_8B, convention="6n_active") == pytest.approx(4.818157e10, rel=1e-6)
    assert training_flops_per_token(LLAMA_3_8B, convention="matmul") == 6 * 7504658432
    full = training_flops_per_token(LLAMA_3_8B, 8192, "matmul_full") - 6 * 7504658432
    causal = training_flops_per_token(LLAMA_3_8B, 8192, "matmul_causal") - 6 * 7504658432
    assert full == pytest.approx(1.288490e10, rel=1e-6) and causal == pytest.approx(6.442451e9, rel=1e-6)
    assert training_flops_per_token(LLAMA_3_8B, 8192, "palm") == pytest.approx(4.818157e10 + 1.288490e10, rel=1e-6)
    assert 15e12 * training_flops_per_token(LLAMA_3_8B, convention="6n_total") == pytest.approx(7.22724e23, rel=1e-5)
    assert 15e12 * training_flops_per_token(LLAMA_3_8B, 8192, "matmul_causal") == pytest.approx(7.72056e23, rel=1e-5)


@pytest.mark.parametrize(
    ("length", "share"), [(4096, 6.7), (8192, 12.5), (16384, 22.3), (32768, 36.4), (65536, 53.4), (131072, 69.6)]
)
def test_attention_share_by_length(length, share):
    attention = attention_flops_per_token(LLAMA_3_8B, length, causal=True)
    total = training_flops_per_token(LLAMA_3_8B, length, "matmul_causal")
    assert 100 * attention / total == pytest.approx(share, abs=0.06)


def test_palm_utilisation():
    """The published 45.7 % and 46.2 %."""
    shape = ModelShape(
        vocab_size=1,
        hidden_size=1,
        num_layers=118,
        num_heads=48,
        num_kv_heads=1,
        head_dim=256,
        intermediate_size=1,
        tied=True,
    )
    attention = attention_flops_per_token(shape, 2048, causal=False)
    without = model_flops_utilisation(238.3e3, 6 * 540.35e9, 275e12, 6144)
    assert without == pytest.approx(0.4573, abs=5e-5)
    assert model_flops_utilisation(238.3e3, 6 * 540.35e9 + attention, 275e12, 6144) == pytest.approx(0.4623, abs=5e-5)


def test_sliding_window_sees_less():
    windowed = {**TINY, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    assert attention_flops_per_token(windowed, 16, causal=False) == 12 * 64 * (4 + 16)
    assert attention_flops_per_token(windowed, 16, causal=True) == 12 * 64 * ((4 - 16 / 32) + 8)
    assert attention_flops_per_token(windowed, 4, causal=True) == attention_flops_per_token(TINY, 4, causal=True)


def test_unknown_peak_gives_no_number():
    assert model_flops_utilisation(1e6, 1e9, None) is None
    assert peak_flops("AMD EPYC 9965 192-Core Processor") is None
    assert peak_flops("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert peak_flops("NVIDIA GH200 480GB") is None
    assert peak_flops("cpu", override_tflops=0.2) == 2e11


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GB200", 2500),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 836),
        ("NVIDIA H20", 148),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H800", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("AMD Instinct MI300X", 1307.4),
        ("TPU v5e", 197),
        ("TPU v5 lite", 197),
    ],
)
def test_names_drivers_report(name, expected):
    device = find_device(name)
    assert device is not None and device.bf16_tflops == expected
    assert device.peak_flops == expected * 1e12


def test_table_has_no_sparse_figures():
    """The trap of datasheets: 1979 for H100, 4500 for B200."""
    assert max(device.bf16_tflops for device in DEVICES) <= 2516
    assert not {1979, 1978.9, 4500, 624} & {device.bf16_tflops for device in DEVICES}


def test_bad_input():
    with pytest.raises(UserError, match="Unknown FLOP convention '6n'"):
        training_flops_per_token(TINY, 16, "6n")
    for convention in ("palm", "matmul_full", "matmul_causal"):
        assert convention in FLOP_CONVENTIONS
        with pytest.raises(UserError, match="seq_length = None"):
            training_flops_per_token(TINY, convention=convention)
    with pytest.raises(UserError, match="seq_length = 0"):
        training_flops_per_token(TINY, 0)


def test_hardware_flops():
    """8 N and 16/12 of the attention under full checkpointing; the scores alone under selective."""
    weights, scores = 6 * 7504658432, 1.2884901888e10
    assert hardware_flops_per_token(LLAMA_3_8B, 8192, "matmul_full") == weights + scores
    assert hardware_flops_per_token(LLAMA_3_8B, 8192, "matmul_full", "full") == pytest.approx(
        8 * 7504658432 + scores * 16 / 12
    )
    assert hardware_flops_per_token(LLAMA_3_8B, 8192, "matmul_full", "selective") == weights + scores * 4 / 3
    assert hardware_flops_per_token(LLAMA_3_8B, convention="matmul", recompute="selective") == weights
    with pytest.raises(UserError, match="Unknown recompute 'fulll'. Did you mean 'full'"):
        hardware_flops_per_token(LLAMA_3_8B, 8192, recompute="fulll")


def test_flops_from_numbers():
    assert flops_per_token_from_numbers(540.35e9) == 6 * 540.35e9
    palm = flops_per_token_from_numbers(540.35e9, 118, 48, 256, 2048, causal=False)
    assert model_flops_utilisation(238.3e3, palm, 275e12, 6144) == pytest.approx(0.4623, abs=5e-5)
    assert palm - 6 * 540.35e9 == 2 * (flops_per_token_from_numbers(1, 118, 48, 256, 2048) - 6)
    with pytest.raises(UserError, match="parameters = 0"):
        flops_per_token_from_numbers(0)


def test_a_convention_moves_the_utilisation():
    """OLMo-3-7B at 7700 tokens a second and GPU: 34 % with 6 N, about 43 % with attention in full."""
    size, per_device = 7.3e9, 7700
    without = model_flops_utilisation(per_device, flops_per_token_from_numbers(size), 989e12)
    full = model_flops_utilisation(
        per_device, flops_per_token_from_numbers(size, 32, 32, 128, 8192, causal=False), 989e12
    )
    assert without == pytest.approx(0.341, abs=2e-3) and full == pytest.approx(0.44, abs=6e-3)


def test_a_table_of_your_own(tmp_path):
    path = tmp_path / "hardware.yaml"
    path.write_text(
        "- {name: H100, bf16_tflops: 800, memory_gb: 64, price_low: 1.5}\n"
        "- {name: X1, bf16_tflops: 10, memory_gb: 8}\n"
    )
    devices = load_devices(path)
    assert find_device("NVIDIA H100 80GB HBM3", devices).bf16_tflops == 800
    assert find_device("x1", devices).memory_gb == 8 and find_device("X10", devices) is None
    assert find_device("NVIDIA A100-SXM4-80GB", devices).bf16_tflops == 312
    assert find_device("NVIDIA H100 80GB HBM3").bf16_tflops == 989


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {name: X, bf16_tflop: 3}", "Did you mean 'bf16_tflops'"),
        ("- {name: X, bf16_tflops: -3, memory_gb: 1}", "bf16_tflops = -3; a positive number"),
        ("- {name: X, bf16_tflops: yes, memory_gb: 1}", "bf16_tflops = True"),
        ("- {name: X, bf16_tflops: 3}", "memory_gb is missing for X"),
        ("- {name: 3, bf16_tflops: 3, memory_gb: 1}", "name = 3; text is needed"),
        ("- {name: X, pattern: '(', bf16_tflops: 3, memory_gb: 1}", "no regular expression"),
        ("name: X", "a list of devices is needed"),
        ("[", "no valid YAML"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    path = tmp_path / "hardware.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_devices(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_devices(tmp_path / "missing.yaml")
