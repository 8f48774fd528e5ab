"""Find out which libcuda the programs of a planned container load, the plan's edits counting as made.

Import budget: GPU container.
"""

from __future__ import annotations

from gpu_oci_hook.container.image import LD_CACHE
from gpu_oci_hook.model.edits import AddMount, Plan, SetEnvVariable
from gpu_oci_hook.model.file_edits import AddFile, AddLink, PrepareDirectory
from gpu_oci_hook.model.libcuda_choice import LD_LIBRARY_PATH
from gpu_oci_hook.plan.libcuda_search import LoaderInputs, find_libcuda
from gpu_oci_hook.plan.loader_files import LIBCUDA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_oci_hook.model.libcuda_choice import LibcudaChoice
    from gpu_oci_hook.model.machine import DriverFile
    from gpu_oci_hook.model.plan_input import PlanInput
    from gpu_oci_hook.plan.compat import CompatDecision
    from gpu_oci_hook.plan.layout import Layout
    from gpu_oci_hook.plan.loader_files import LibrarySearch


def find_planned_libcuda(
    plan_input: PlanInput, plan: Plan, layout: Layout, search: LibrarySearch, compat: CompatDecision | None
) -> LibcudaChoice:
    """Find the libcuda.so.1 that programs load.

    Arguments:
        compat: the decision about the image's compat libraries; None if it has none.
    """
    container = plan_input.container
    links: dict[str, str] = {}
    files: dict[str, bytes] = {}
    host_files: list[str] = []
    prepared: list[str] = []
    search_path = plan_input.request.environment.get(LD_LIBRARY_PATH, "")
    host_sources = {file.source for file in (*plan_input.inventory.files, *_list_optional_files(plan_input))}
    for edit in plan.edits:
        if isinstance(edit, AddLink):
            links[edit.path] = edit.target
        elif isinstance(edit, PrepareDirectory):
            prepared.append(edit.destination)
            links.update({f"{edit.destination}/{name}": target for name, target in edit.entries if target})
        elif isinstance(edit, AddMount) and edit.source in host_sources:
            host_files.append(edit.destination)
        elif isinstance(edit, AddFile):
            files[edit.path] = edit.content
        elif isinstance(edit, SetEnvVariable) and edit.name == LD_LIBRARY_PATH:
            search_path = edit.value
    inputs = LoaderInputs(
        container.image,
        container.rootfs_reader,
        spec=container.spec,
        search_path=search_path,
        cached_path=search.find_cached_path(LIBCUDA) if LD_CACHE in files else None,
        written_files=files,
        links=links,
        host_files=host_files,
        host_trees=tuple([f"{file.container_path}/" for file in plan_input.inventory.files if file.kind == "tree"]),
        sealed_directories=prepared,
        directories32=(layout.driver_library_dir32,)
        if layout.driver_library_dir32 != layout.driver_library_dir
        else (),
        is_hidden=lambda path: layout.classify_resolved_path(path) != "image",
        is_mounted=layout.is_mount_destination,
        writable=layout.writable,
    )
    return find_libcuda(
        inputs,
        driver_version=plan_input.inventory.library_version or plan_input.inventory.version,
        wanted="image" if search.compat_directory else "host",
        reason=compat.reason if compat else "",
        compat_error=compat.error if compat else "",
    )


def _list_optional_files(plan_input: PlanInput) -> list[DriverFile]:
    return [file for file, _ in plan_input.optional_items.files]
