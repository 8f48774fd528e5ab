"""What a driver's version and a GPU's name tell without asking NVML: CUDA version, brand, compute capability.

Sources: the CUDA toolkit release notes (driver table), NVIDIA's list of compute capabilities, and the brands
    that
NVML reports. Whatever is not listed is answered with "" or (), and the caller asks NVML. Cost rule: on the
way of a container with NVIDIA_REQUIRE_* only; tuples and text comparison, no imports.
"""

from __future__ import annotations

# Driver series and the CUDA version that it supports.
_CUDA_BY_DRIVER = (
    (340, "6.5"), (346, "7.0"), (352, "7.5"), (358, "7.5"), (361, "7.5"), (367, "8.0"), (370, "8.0"), (375, "8.0"),
    (378, "8.0"), (381, "8.0"), (384, "9.0"), (387, "9.1"), (390, "9.1"), (396, "9.2"), (410, "10.0"),
    (415, "10.0"), (418, "10.1"), (430, "10.1"), (435, "10.1"), (440, "10.2"), (450, "11.0"), (455, "11.1"),
    (460, "11.2"), (465, "11.3"), (470, "11.4"), (495, "11.5"), (510, "11.6"), (515, "11.7"), (520, "11.8"),
    (525, "12.0"), (530, "12.1"), (535, "12.2"), (545, "12.3"), (550, "12.4"), (555, "12.5"), (560, "12.6"),
    (565, "12.7"), (570, "12.8"), (575, "12.9"), (580, "13.0"), (590, "13.1"),
)  # fmt: skip

# Data centre products: name, compute capability. From Ampere on NVML calls them "nvidia", before "tesla".
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

# Everything else: words of the name, compute capability. The first row whose words are all there, side by
# side.
_OTHER_GPUS = (
    ("ADA", "8.9"), ("BLACKWELL", "12.0"), ("GB10", "12.1"), ("THOR", "11.0"), ("ORIN", "8.7"), ("CMP 170HX", "8.0"),
    ("RTX A2000", "8.6"), ("RTX A400", "8.6"), ("RTX A500", "8.6"), ("RTX A1000", "8.6"), ("RTX A3000", "8.6"),
    ("RTX A4000", "8.6"), ("RTX A4500", "8.6"), ("RTX A5000", "8.6"), ("RTX A5500", "8.6"), ("RTX A6000", "8.6"),
    ("QUADRO RTX", "7.5"), ("T400", "7.5"), ("T500", "7.5"), ("T550", "7.5"), ("T600", "7.5"),
    ("T1000", "7.5"), ("T1200", "7.5"), ("T2000", "7.5"), ("QUADRO GV100", "7.0"), ("QUADRO GP100", "6.0"),
    ("TITAN RTX", "7.5"), ("TITAN V", "7.0"), ("TITAN XP", "6.1"), ("GTX TITAN X", "5.2"), ("TITAN X", "6.1"),
)  # fmt: skip
_QUADRO_T_MODELS = ("T400", "T500", "T550", "T600", "T1000", "T1200", "T2000")  # Quadro T for their first drivers
# GeForce, and Quadro by letter: series, compute capability. A number's first digits tell the generation.
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
# The last letter of a virtual GPU's profile ("A40-48Q") is its licence, which NVML has as the brand.
_VIRTUAL_GPU_LICENSES = {"A": "vapps", "B": "vpc", "C": "vcs", "Q": "vws"}


def lookup_cuda_version(driver: str) -> tuple[str, str]:
    """The CUDA version that a driver supports.

    Returns:
        (exact, at least): exact is "" for a series that is not in the table; the older series nearest to it
        then tells what it supports at least, "" when there is none.
    """
    head = driver.partition(".")[0]
    if not (head.isascii() and head.isdigit()):
        return "", ""
    series = int(head[:6])
    below = ""
    for known, cuda in _CUDA_BY_DRIVER:
        if known == series:
            return cuda, cuda
        if known < series:
            below = cuda
    return "", below


def lookup_gpu_brands(model: str) -> tuple[str, ...]:
    """The brands that a GPU of this name goes by in requirements, lower case, NVML's own first; () when
    unknown.

    More than one where drivers have changed their mind: a data centre GPU was "tesla" and is "nvidia" now.
    """
    text = _normalize_model(model)
    virtual = _virtual_gpu_license(text)
    if virtual:
        return (virtual, "grid")
    if " GRID " in text:
        return ("grid",)
    if " NVS " in text:
        return ("nvs",)
    for word, brand in ((" TITAN ", "titan"), (" GEFORCE ", "geforce"), (" QUADRO ", "quadro")):
        if word in text:
            return (brand + "rtx", brand) if " RTX " in text else (brand,)
    arch = _datacenter_capability(text)
    if arch:
        return ("tesla",) if arch[0] in _TESLA_BRAND_DIGITS and arch[1] == "." else ("nvidia", "tesla")
    if " TESLA " in text:
        return ("tesla",)
    if " RTX " in text:
        return ("nvidiartx", "quadrortx")
    if text.split()[:1] and text.split()[0] in _QUADRO_T_MODELS:
        return ("nvidia", "quadro")
    return ()


def is_datacenter_gpu(model: str) -> bool:
    """Whether this is a data centre GPU: only those may run a newer libcuda than the driver's own."""
    text = _normalize_model(model)
    if any(word in text for word in (" GEFORCE ", " TITAN ", " QUADRO ", " RTX ", " NVS ")) or _virtual_gpu_license(
        text
    ):
        return False
    return " TESLA " in text or bool(_datacenter_capability(text))


def lookup_compute_capability(model: str) -> str:
    """The compute capability of a GPU of this name ("8.0"); "" when the name does not tell."""
    text = _normalize_model(model)
    for words, capability in _OTHER_GPUS:
        if f" {words} " in text:
            return capability
    if " GEFORCE " in text:
        for words, capability in _GEFORCE_SERIES:
            at = text.find(" " + words)
            name = text[at + 1 :].split(" ")
            if at >= 0 and len(name) > 1 and (capability[0] not in "5" or name[1].isdigit()):
                return capability  # of the fifth generation the mobile ones (960M) differ
        return ""
    if " QUADRO " in text:
        return next((capability for word, capability in _QUADRO_MODELS if f" {word} " in text), "")
    return "" if " RTX " in text else _datacenter_capability(text)


def _normalize_model(model: str) -> str:
    """The name in capitals, its words between blanks, without the maker: " A100 SXM4 40GB "."""
    words = model.upper().replace("-", " ").replace("(", " ").replace(")", " ").split()
    if words and words[0] == "NVIDIA":
        del words[0]
    return f" {' '.join(words)} "


def _datacenter_capability(text: str) -> str:
    return next((capability for name, capability in _DATACENTER_GPUS if f" {name} " in text), "")


def _virtual_gpu_license(text: str) -> str:
    """The licence of a virtual GPU's profile, its last word: a number and a letter."""
    words = text.split()
    last = words[-1] if len(words) > 1 else ""
    if (
        last[:-1].isdigit()
        and len(last) <= 4
        and last[-1] in _VIRTUAL_GPU_LICENSES
        and (_datacenter_capability(text) or " RTX " in text)
    ):
        return _VIRTUAL_GPU_LICENSES[last[-1]]
    return ""
