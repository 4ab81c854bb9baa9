"""Peaks of accelerators, as data: dense bf16 FLOP/s, memory, bandwidth.

Vendors' sheets print the figure with sparsity: these are without (half). Names are matched as whole words in the order
of the table, so "GB200" is no "B200" and "H200" no "H20"; a device that is not in the table has no peak, and no MFU is
computed for it. Sources: vendors' sheets; see the comments where they disagree.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


# GB/s one device sends inside its machine (NVLink, xGMI) and, by default, to other machines (400 Gbit/s a device).
DEFAULT_LINK_GBS = 25.0  # PCIe
DEFAULT_NETWORK_GBS = 50.0


@dataclass(frozen=True)
class Device:
    """One kind of accelerator.

    Args:
        name (`str`): Short name.
        pattern (`str`): Regular expression, matched without case against the name the driver reports.
        bf16_tflops (`float`): Dense bf16 peak in TFLOP/s.
        memory_gb (`float`): Memory in GB (1e9 bytes).
        bandwidth_tbs (`float`): Memory bandwidth in TB/s.
        link_gbs (`float`, *optional*, defaults to 25.0): GB/s it sends to its neighbours in the machine.
        price_low (`float`, *optional*): Per hour, low end; a user's table only.
        price_high (`float`, *optional*): High end.
    """

    name: str
    pattern: str
    bf16_tflops: float
    memory_gb: float
    bandwidth_tbs: float
    link_gbs: float = DEFAULT_LINK_GBS
    price_low: float | None = None
    price_high: float | None = None

    @property
    def peak_flops(self) -> float:
        """`float`: Dense bf16 peak in FLOP/s."""
        return self.bf16_tflops * 1e12


DEVICES: tuple[Device, ...] = (
    Device("GB300", r"\bGB300\b", 2500, 288, 8.0, 900),
    Device("GB200", r"\bGB200\b", 2500, 186, 8.0, 900),
    Device("B300", r"\bB300\b", 2250, 288, 8.0, 900),  # a blog claims 3500
    Device("B200", r"\bB200\b", 2250, 180, 7.7, 900),
    Device("H200 NVL", r"\bH200 NVL\b", 836, 141, 4.8, 450),
    Device("H200", r"\bH200\b", 989, 141, 4.8, 450),
    Device("H20", r"\bH20\b", 148, 96, 4.0, 450),
    Device("H800", r"\bH800\b(?!.*PCIe)", 989, 80, 3.35, 200),
    Device("H100 NVL", r"\bH100 NVL\b", 835, 94, 3.9, 300),
    Device("H100 PCIe", r"\bH100 PCIe\b", 756, 80, 2.0),
    Device("H100 SXM", r"\bH100\b", 989, 80, 3.35, 450),  # reported as "NVIDIA H100 80GB HBM3"
    Device("A100 80GB PCIe", r"\bA100 80GB PCIe\b", 312, 80, 1.935),
    Device("A100 80GB", r"\bA100\b.*80GB", 312, 80, 2.039, 300),
    Device("A100 40GB", r"\bA100\b", 312, 40, 1.555, 300),
    Device("L40S", r"\bL40S\b", 362, 48, 0.864),
    Device("RTX 5090", r"\bRTX 5090\b(?! (D|Laptop))", 209.5, 32, 1.792),
    Device("RTX 4090", r"\bRTX 4090\b(?! (D|Laptop))", 165.2, 24, 1.008),
    Device("MI355X", r"\bMI355X\b", 2500, 288, 8.0),
    Device("MI325X", r"\bMI325X\b", 1307.4, 256, 6.0),
    Device("MI300X", r"\bMI300X\b", 1307.4, 192, 5.3),
    Device("MI250X (one die)", r"\bMI250X\b", 191.5, 64, 1.64),  # torch shows each of the two dies as a device
    Device("TPU v6e", r"\bTPU v6e\b", 918, 32, 1.638),
    Device("TPU v5p", r"\bTPU v5p\b", 459, 95, 2.765),
    Device("TPU v5e", r"\bTPU v5( ?lite|e)\b", 197, 16, 0.819),
    Device("TPU v4", r"\bTPU v4\b", 275, 32, 1.228),
)


def load_devices(path: str | os.PathLike) -> tuple[Device, ...]:
    """Reads a table of your own and puts it before the one here, so that its entries win.

    Args:
        path (`str` or `os.PathLike`): A YAML list of mappings with the fields of [`Device`]; `name`, `bf16_tflops`
            (dense) and `memory_gb` are needed. Without `pattern` the name itself is looked for.

    Returns:
        `tuple[Device, ...]`: Yours, then `DEVICES`.

    Raises:
        UserError: If the file cannot be read, a field is unknown or missing, or a number is not positive.
    """
    import yaml

    try:
        rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"hardware = {path}; it cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"hardware = {path}; no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"hardware = {path}; a list of devices is needed: - {{name: X, bf16_tflops: 100, ...}}.")
    return (*(_device_from(row, f"hardware = {path}") for row in rows), *DEVICES)


def _device_from(row: dict[str, Any], where: str) -> Device:
    known = [item.name for item in fields(Device)]
    for key, value in row.items():
        if key not in known:
            raise UserError(f"{where}; {unknown_name_message('field', str(key), known)}")
        number = key not in ("name", "pattern")
        if number and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9):
            raise UserError(f"{where}; {key} = {value!r}; a positive number is needed.")
        if not number and (not isinstance(value, str) or not value):
            raise UserError(f"{where}; {key} = {value!r}; text is needed.")
    for key in ("name", "bf16_tflops", "memory_gb"):
        if key not in row:
            raise UserError(f"{where}; {key} is missing for {row.get('name', 'a device')}.")
    try:
        re.compile(row.get("pattern", ""))
    except re.error as error:
        raise UserError(f"{where}; pattern = {row['pattern']!r} is no regular expression: {error}.") from error
    pattern = rf"(?<!\w){re.escape(row['name'])}(?!\w)"
    return Device(**{"pattern": pattern, "bandwidth_tbs": 1.0, **row})


def find_device(name: str, devices: Sequence[Device] = ()) -> Device | None:
    """Looks a device up by the name its driver reports.

    Args:
        name (`str`): For example `torch.cuda.get_device_name()`.
        devices (`Sequence[Device]`, *optional*): Another table, from [`load_devices`]; `DEVICES` by default.

    Returns:
        `Device`, *optional*: The first that matches, `None` for an unknown one (a CPU, a laptop chip, ...).
    """
    for device in devices or DEVICES:
        if re.search(device.pattern, name, flags=re.IGNORECASE):
            return device
    return None


def peak_flops(name: str, override_tflops: float | None = None) -> float | None:
    """Dense bf16 peak of a device.

    Args:
        name (`str`): As the driver reports it.
        override_tflops (`float`, *optional*): The user's figure in TFLOP/s; wins over the table.

    Returns:
        `float`, *optional*: FLOP/s, `None` if unknown.
    """
    if override_tflops is not None:
        return override_tflops * 1e12
    device = find_device(name)
    return None if device is None else device.peak_flops
