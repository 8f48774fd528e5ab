"""What a driver's version and a GPU's name tell."""

from __future__ import annotations

import pytest

from gpu_oci_hook.host import model_tables


@pytest.mark.parametrize(
    ("driver", "exact", "least"),
    [
        ("418.87.00", "10.1", "10.1"),
        ("450.80.02", "11.0", "11.0"),
        ("470.256.02", "11.4", "11.4"),
        ("535.183.01", "12.2", "12.2"),
        ("550.163.01", "12.4", "12.4"),
        ("580.65.06", "13.0", "13.0"),
        ("590.44.01", "13.1", "13.1"),
        ("552.12", "", "12.4"),
        ("700.10", "", "13.1"),
        ("304.12", "", ""),
        ("", "", ""),
        ("x.y", "", ""),
        ("9" * 5000 + ".1", "", "13.1"),
    ],
)
def test_the_driver_series_tells_the_cuda_version(driver: str, exact: str, least: str) -> None:
    assert model_tables.lookup_cuda_version(driver) == (exact, least)


def test_the_table_of_drivers_is_in_order() -> None:
    table = model_tables._CUDA_BY_DRIVER
    assert [series for series, _ in table] == sorted({series for series, _ in table})
    numbers = [tuple(int(part) for part in cuda.split(".")) for _, cuda in table]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("model", "brand", "arch", "datacenter"),
    [
        ("NVIDIA A100-SXM4-40GB", ("nvidia", "tesla"), "8.0", True),
        ("NVIDIA A100 80GB PCIe", ("nvidia", "tesla"), "8.0", True),
        ("A100-SXM4-40GB", ("nvidia", "tesla"), "8.0", True),
        ("NVIDIA H100 80GB HBM3", ("nvidia", "tesla"), "9.0", True),
        ("NVIDIA H200", ("nvidia", "tesla"), "9.0", True),
        ("NVIDIA GH200 480GB", ("nvidia", "tesla"), "9.0", True),
        ("NVIDIA B200", ("nvidia", "tesla"), "10.0", True),
        ("NVIDIA L40S", ("nvidia", "tesla"), "8.9", True),
        ("NVIDIA L4", ("nvidia", "tesla"), "8.9", True),
        ("NVIDIA A10G", ("nvidia", "tesla"), "8.6", True),
        ("Tesla T4", ("tesla",), "7.5", True),
        ("Tesla V100-SXM2-16GB", ("tesla",), "7.0", True),
        ("Tesla K80", ("tesla",), "3.7", True),
        ("Tesla Z99", ("tesla",), "", True),
        ("NVIDIA GeForce RTX 5090", ("geforcertx", "geforce"), "12.0", False),
        ("NVIDIA GeForce RTX 4090", ("geforcertx", "geforce"), "8.9", False),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", ("geforcertx", "geforce"), "8.6", False),
        ("NVIDIA GeForce RTX 2050", ("geforcertx", "geforce"), "8.6", False),
        ("GeForce RTX 2080 Ti", ("geforcertx", "geforce"), "7.5", False),
        ("GeForce GTX 1080 Ti", ("geforce",), "6.1", False),
        ("NVIDIA GeForce GTX 960", ("geforce",), "5.2", False),
        ("NVIDIA GeForce GTX 960M", ("geforce",), "", False),
        ("NVIDIA GeForce MX450", ("geforce",), "", False),
        ("NVIDIA TITAN RTX", ("titanrtx", "titan"), "7.5", False),
        ("TITAN Xp", ("titan",), "6.1", False),
        ("NVIDIA TITAN X (Pascal)", ("titan",), "6.1", False),
        ("GeForce GTX TITAN X", ("titan",), "5.2", False),
        ("NVIDIA RTX A6000", ("nvidiartx", "quadrortx"), "8.6", False),
        ("NVIDIA RTX 6000 Ada Generation", ("nvidiartx", "quadrortx"), "8.9", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ("nvidiartx", "quadrortx"), "12.0", False),
        ("Quadro RTX 6000", ("quadrortx", "quadro"), "7.5", False),
        ("Quadro P2000", ("quadro",), "6.1", False),
        ("Quadro T1000", ("quadro",), "7.5", False),
        ("NVIDIA T400 4GB", ("nvidia", "quadro"), "7.5", False),
        ("NVS 510", ("nvs",), "", False),
        ("GRID K1", ("grid",), "", False),
        ("GRID A100-10C", ("vcs", "grid"), "8.0", False),
        ("NVIDIA A40-48Q", ("vws", "grid"), "8.6", False),
        ("Fake GPU", (), "", False),
        ("NVIDIA", (), "", False),
        ("", (), "", False),
        ("\n A100", ("nvidia", "tesla"), "8.0", True),
    ],
)
def test_the_name_tells_brand_and_compute_capability(
    model: str, brand: tuple[str, ...], arch: str, *, datacenter: bool
) -> None:
    assert model_tables.lookup_gpu_brands(model) == brand
    assert model_tables.lookup_compute_capability(model) == arch
    assert model_tables.is_datacenter_gpu(model) is datacenter
