"""The hook's command line: what is said comes back, and what means nothing is a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpu_oci_hook.errors import Fault
from gpu_oci_hook.hook.arguments import HookArguments, parse_hook_arguments

WORD = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
PATH = WORD.filter(lambda text: "::" not in text and not text.endswith(":")).map(lambda text: "/" + text)


def values(arguments: HookArguments) -> dict[str, object]:
    return {name: getattr(arguments, name) for name in HookArguments.__slots__}


def full() -> HookArguments:
    arguments = HookArguments()
    arguments.links = [("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so"), ("../card1", "/dev/dri/by-path/x")]
    arguments.plugins = [("/usr/local/nvidia/lib64/libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so")]
    arguments.plugins32 = [("/usr/local/nvidia/lib/libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so")]
    arguments.folders, arguments.folders32 = ["/usr/local/nvidia/lib64"], ["/usr/local/nvidia/lib"]
    arguments.driver_version, arguments.cuda_compat, arguments.root = "550.163.01", "never", "/run/nvidia/driver"
    arguments.hide_device_files = arguments.egl_profile = arguments.drm_links = arguments.requirements = True
    arguments.log, arguments.made_from = "/var/log/hook.log", "1f"
    arguments.made_by, arguments.incomplete = "gpu-oci-hook cdi refresh --output /etc/cdi/x.yaml", "/dev/x is missing"
    return arguments


def test_arguments_that_ask_for_nothing_has_no_words() -> None:
    assert HookArguments().to_command_line() == []
    assert values(parse_hook_arguments([])) == values(HookArguments())


def test_the_words_of_arguments_have_one_order() -> None:
    assert full().to_command_line() == [
        "--link", "libcuda.so.1::/usr/local/nvidia/lib64/libcuda.so", "--link", "../card1::/dev/dri/by-path/x",
        "--plugin", "/usr/local/nvidia/lib64/libnvidia-allocator.so.1::gbm/nvidia-drm_gbm.so",
        "--plugin32", "/usr/local/nvidia/lib/libnvidia-allocator.so.1::gbm/nvidia-drm_gbm.so",
        "--folder", "/usr/local/nvidia/lib64", "--folder32", "/usr/local/nvidia/lib",
        "--driver-version", "550.163.01", "--cuda-compat", "never", "--root", "/run/nvidia/driver",
        "--log", "/var/log/hook.log", "--made-from", "1f",
        "--made-by", "gpu-oci-hook cdi refresh --output /etc/cdi/x.yaml", "--incomplete", "/dev/x is missing",
        "--hide-device-files", "--egl-profile", "--drm-links", "--check-requirements",
    ]  # fmt: skip


def test_what_is_said_comes_back() -> None:
    assert values(parse_hook_arguments(full().to_command_line())) == values(full())


@given(
    some.lists(some.tuples(PATH, PATH.map(lambda path: f"{path}/name")), max_size=3),
    some.lists(PATH, max_size=3),
    some.tuples(WORD, WORD, PATH, PATH),
    some.tuples(some.booleans(), some.booleans()),
)
def test_whatever_is_said_comes_back(
    links: list[tuple[str, str]], folders: list[str], texts: tuple[str, ...], switches: tuple[bool, bool]
) -> None:
    arguments = HookArguments()
    arguments.links, arguments.folders = links, folders
    arguments.driver_version, arguments.made_from, arguments.root, arguments.log = texts
    arguments.hide_device_files, arguments.requirements = switches
    assert values(parse_hook_arguments(arguments.to_command_line())) == values(arguments)


def test_a_value_may_follow_an_equals_sign() -> None:
    words = ["--folder=/a", "-folder", "/b", "--link=x=1::/y=2", "--egl-profile=false", "--drm-links=true"]
    arguments = parse_hook_arguments(words)
    assert (arguments.folders, arguments.links) == (["/a", "/b"], [("x=1", "/y=2")])
    assert (arguments.egl_profile, arguments.drm_links) == (False, True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nope"], "--nope: unknown flag. Use one of --board-compat, "),
        (["x"], 'command line: "x" is not a flag'),
        ([""], 'command line: "" is not a flag'),
        (["--"], 'command line: "--" is not a flag'),
        (["--folder"], "--folder: the value is missing"),
        (["--folder", "lib"], '--folder: "lib" is not an absolute path'),
        (["--root="], '--root: "" is not an absolute path'),
        (["--log", "l"], '--log: "l" is not an absolute path'),
        (["--link", "a:/b"], '--link: "a:/b" is not of the form TARGET::PATH'),
        (["--link", "::/b"], '--link: "::/b" is not of the form TARGET::PATH'),
        (["--link", "a::/b::/c"], '--link: "a::/b::/c" is not of the form TARGET::PATH'),
        (["--link", "a::/usr/lib/"], '--link: "/usr/lib/" names a directory; a link needs a file name'),
        (["--link", "a::/b/.."], '--link: "/b/.." names a directory'),
        (["--plugin", "a::/b"], '--plugin: "/b" is not a path relative to a directory'),
        (["--plugin32", "a::b/../c"], '--plugin32: "b/../c" is not a path relative to a directory'),
        (["--link", "a::b"], '--link: "b" is not an absolute path'),
        (["--cuda-compat", "no"], '--cuda-compat: invalid policy "no". Use one of auto, always, never'),
        (["--egl-profile=1"], '--egl-profile: "1" is neither true nor false'),
    ],
)
def test_what_means_nothing_is_a_sentence(words: list[str], text: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_hook_arguments(words)
    assert str(caught.value).startswith(text)


def test_arguments_that_no_command_line_can_express_are_refused_when_written() -> None:
    arguments = HookArguments()
    arguments.links = [("a::b", "/c")]
    with pytest.raises(Fault, match="is not of the form TARGET::PATH"):
        arguments.to_command_line()
