"""Look up CUDA version, brand and compute capability by driver version and GPU name, without NVML.

Sources: the CUDA toolkit release notes (driver table), NVIDIA's list of compute capabilities, and the brands that
NVML reports. An unlisted driver or GPU results in "" or (), and the caller queries NVML.

Import budget: GPU container.
"""

from __future__ import annotations

# Driver series, newest CUDA version that it supports.
_CUDA_BY_DRIVER = (
    (340, "6.5"), (346, "7.0"), (352, "7.5"), (358, "7.5"), (361, "7.5"), (367, "8.0"), (370, "8.0"), (375, "8.0"),
    (378, "8.0"), (381, "8.0"), (384, "9.0"), (387, "9.1"), (390, "9.1"), (396, "9.2"), (410, "10.0"),
    (415, "10.0"), (418, "10.1"), (430, "10.1"), (435, "10.1"), (440, "10.2"), (450, "11.0"), (455, "11.1"),
    (460, "11.2"), (465, "11.3"), (470, "11.4"), (495, "11.5"), (510, "11.6"), (515, "11.7"), (520, "11.8"),
    (525, "12.0"), (530, "12.1"), (535, "12.2"), (545, "12.3"), (550, "12.4"), (555, "12.5"), (560, "12.6"),
    (565, "12.7"), (570, "12.8"), (575, "12.9"), (580, "13.0"), (590, "13.1"),
)  # fmt: skip

# Data centre products: name, compute capability. NVML reports the brand "nvidia" from Ampere on, "tesla" before.
_DATACENTER_GPUS = (
    ("GB300", "10.3"), ("B300", "10.3"), ("GB200", "10.0"), ("B200", "10.0"), ("B100", "10.0"),
    ("GH200", "9.0"), ("H200", "9.0"), ("H100", "9.0"), ("H800", "9.0"), ("H20", "9.0"),
    ("L40S", "8.9"), ("L40G", "8.9"), ("L40", "8.9"), ("L20", "8.9"), ("L4", "8.9"), ("L2", "8.9"),
    ("A100", "8.0"), ("A100X", "8.0"), ("A800", "8.0"), ("A30", "8.0"), ("A30X", "8.0"),
    ("A40", "8.6"), ("A10", "8.6"), ("A10G", "8.6"), ("A10M", "8.6"), ("A16", "8.6"), ("A2", "8.6"),
    ("T4", "7.5"), ("T4G", "7.5"), ("V100", "7.0"), ("V100S", "7.0"), ("P100", "6.0"), ("P40", "6.1"),
    ("P6", "6.1"), ("P4", "6.1"), ("M60", "5.2"), ("M40", "5.2"), ("M6", "5.2"), ("M4", "5.2"), ("M10", "5.0"),
    ("K80", "3.7"), ("K40M", "3.5"), ("K40C", "3.5"), ("K20M", "3.5"), ("K20XM", "3.5"), ("K20C", "3.5"),
    ("K10", "3.0"),
)  # fmt: skip
_TESLA_BRAND_DIGITS = "3567"  # first digits of the compute capabilities that carry the brand "tesla"

# All other products: consecutive words of the name, compute capability. The first matching row counts.
_OTHER_GPUS = (
    ("ADA", "8.9"), ("BLACKWELL", "12.0"), ("GB10", "12.1"), ("THOR", "11.0"), ("ORIN", "8.7"), ("CMP 170HX", "8.0"),
    ("RTX A2000", "8.6"), ("RTX A400", "8.6"), ("RTX A500", "8.6"), ("RTX A1000", "8.6"), ("RTX A3000", "8.6"),
    ("RTX A4000", "8.6"), ("RTX A4500", "8.6"), ("RTX A5000", "8.6"), ("RTX A5500", "8.6"), ("RTX A6000", "8.6"),
    ("QUADRO RTX", "7.5"), ("T400", "7.5"), ("T500", "7.5"), ("T550", "7.5"), ("T600", "7.5"),
    ("T1000", "7.5"), ("T1200", "7.5"), ("T2000", "7.5"), ("QUADRO GV100", "7.0"), ("QUADRO GP100", "6.0"),
    ("TITAN RTX", "7.5"), ("TITAN V", "7.0"), ("TITAN XP", "6.1"), ("GTX TITAN X", "5.2"), ("TITAN X", "6.1"),
)  # fmt: skip
_QUADRO_T_MODELS = ("T400", "T500", "T550", "T600", "T1000", "T1200", "T2000")  # "Quadro T…" with their first drivers
# GeForce by series, Quadro by model: name, compute capability. The first digits of a number are the generation.
_GEFORCE_SERIES = (
    ("RTX 50", "12.0"), ("RTX 40", "8.9"), ("RTX 30", "8.6"), ("RTX 2050", "8.6"), ("RTX 20", "7.5"),
    ("GTX 16", "7.5"), ("GTX 10", "6.1"), ("GT 1030", "6.1"), ("GTX 980", "5.2"), ("GTX 970", "5.2"),
    ("GTX 960", "5.2"), ("GTX 950", "5.2"), ("GTX 750", "5.0"),
)  # fmt: skip
_QUADRO_MODELS = (
    ("P400", "6.1"), ("P600", "6.1"), ("P620", "6.1"), ("P1000", "6.1"), ("P2000", "6.1"), ("P2200", "6.1"),
    ("P4000", "6.1"), ("P5000", "6.1"), ("P6000", "6.1"), ("M2000", "5.2"), ("M4000", "5.2"), ("M5000", "5.2"),
    ("M6000", "5.2"),
)  # fmt: skip
# The last letter of a virtual GPU's profile ("A40-48Q") is its licence. NVML reports the licence as the brand.
_VIRTUAL_GPU_LICENSES = {"A": "vapps", "B": "vpc", "C": "vcs", "Q": "vws"}


def lookup_cuda_version(driver: str) -> tuple[str, str]:
    """Return the CUDA version that a driver supports.

    Returns:
        (exact, at least): exact is "" for a series that is not in the table. Then "at least" is the version of the
        next older series, "" when the table has none.
    """
    series_text = driver.partition(".")[0]
    if not (series_text.isascii() and series_text.isdigit()):
        return "", ""
    series = int(series_text[:6])
    at_least = ""
    for listed_series, cuda in _CUDA_BY_DRIVER:
        if listed_series == series:
            return cuda, cuda
        if listed_series < series:
            at_least = cuda
    return "", at_least


def lookup_gpu_brands(model: str) -> tuple[str, ...]:
    """Return the brands that requirements may use for a GPU of this name, or () when unknown.

    They are in lower case, NVML's own first. There are several where the brand depends on the driver: a data centre
    GPU was "tesla" with older drivers and is "nvidia" with newer ones.
    """
    name = _normalize_model(model)
    license_brand = _virtual_gpu_license(name)
    if license_brand:
        return (license_brand, "grid")
    if " GRID " in name:
        return ("grid",)
    if " NVS " in name:
        return ("nvs",)
    for product_line, brand in ((" TITAN ", "titan"), (" GEFORCE ", "geforce"), (" QUADRO ", "quadro")):
        if product_line in name:
            return (brand + "rtx", brand) if " RTX " in name else (brand,)
    capability = _datacenter_capability(name)
    if capability:
        return ("tesla",) if capability[0] in _TESLA_BRAND_DIGITS and capability[1] == "." else ("nvidia", "tesla")
    if " TESLA " in name:
        return ("tesla",)
    if " RTX " in name:
        return ("nvidiartx", "quadrortx")
    if name.split()[:1] and name.split()[0] in _QUADRO_T_MODELS:
        return ("nvidia", "quadro")
    return ()


def is_datacenter_gpu(model: str) -> bool:
    """Tell whether this is a data centre GPU: only those may run a newer libcuda than the driver's own."""
    name = _normalize_model(model)
    if any(line in name for line in (" GEFORCE ", " TITAN ", " QUADRO ", " RTX ", " NVS ")):
        return False
    if _virtual_gpu_license(name):
        return False
    return " TESLA " in name or bool(_datacenter_capability(name))


def lookup_compute_capability(model: str) -> str:
    """Return the compute capability of a GPU of this name ("8.0"), or "" when unknown."""
    name = _normalize_model(model)
    for product, capability in _OTHER_GPUS:
        if f" {product} " in name:
            return capability
    if " GEFORCE " in name:
        for series, capability in _GEFORCE_SERIES:
            at = name.find(" " + series)
            words = name[at + 1 :].split(" ")
            if at >= 0 and len(words) > 1 and (capability[0] not in "5" or words[1].isdigit()):
                return capability  # the mobile models of the fifth generation (960M) differ
        return ""
    if " QUADRO " in name:
        return next((capability for product, capability in _QUADRO_MODELS if f" {product} " in name), "")
    return "" if " RTX " in name else _datacenter_capability(name)


def _normalize_model(model: str) -> str:
    """Return the name in capitals without the manufacturer, each word between blanks: " A100 SXM4 40GB "."""
    words = model.upper().replace("-", " ").replace("(", " ").replace(")", " ").split()
    if words and words[0] == "NVIDIA":
        del words[0]
    return f" {' '.join(words)} "


def _datacenter_capability(name: str) -> str:
    return next((capability for product, capability in _DATACENTER_GPUS if f" {product} " in name), "")


def _virtual_gpu_license(name: str) -> str:
    """Return the brand for the licence of a virtual GPU, or "" for another GPU.

    The profile is the last word of the name: a number and the letter of the licence.
    """
    words = name.split()
    last = words[-1] if len(words) > 1 else ""
    if (
        last[:-1].isdigit()
        and len(last) <= 4
        and last[-1] in _VIRTUAL_GPU_LICENSES
        and (_datacenter_capability(name) or " RTX " in name)
    ):
        return _VIRTUAL_GPU_LICENSES[last[-1]]
    return ""
