"""Marks of transformers' suite that this project's strict settings would refuse."""

import pytest


MARKS = ("accelerate_tests", "is_training_test", "is_tensor_parallel_test", "is_expert_parallel_test", "is_fsdp_test")
MARKS += ("flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "torch_compile_test", "order")


def pytest_configure(config: pytest.Config) -> None:
    """Declares them."""
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark}: of transformers' suite")
