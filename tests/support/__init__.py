"""Helpers and fixtures of the tests. Each kind of scene is in one module:

fixtures          `isolated_state`: state and configuration of the test's own; `shared_host`: a simulated host
command_line      `command`: run `gpu-oci-hook` in this process; JSON output checked against its schema
rootfs_fixtures   `container_root`, `image_dir`, `debian_image`, `untouched_host`: a container's root, a host to protect
bundles           bundles and images, injection in this process, the shim as a process, comparing trees
fake_cache        `FakeCache`: a cache in a dict
driver_tree       a small driver as a tree of files
plan_input        the input of a plan, built by hand
spec_dirs         CDI spec directories in a simulated host, and their registry
valid_specs       valid CDI files, one for each version
spec_mutations    CDI files with random errors
generated_specs   CDI files that we generate for simulated hosts, and what they contain
podman_cases      odd CDI files, and what podman does with them
cdi_edits         bundles with the edits of a CDI file, ours or of NVIDIA's generator
hook_scenes       such a bundle and the hook as a process
nvml_double       an NVML library that answers, fails or hangs as a test wants

Helpers of tests with real engines are in `e2e`:

machine           programs, bounded commands, private mount namespaces, cleaning up
engines           runc, crun, containerd, docker and podman with the same few methods
real_root         this machine with the GPUs of a simulated host, in a private mount namespace
systemd_bus       a stand-in for systemd's bus
images            root file systems: glibc, musl, distroless; the probe
host              the simulated host and the installed runtime
installed_machine the product installed in /usr/local, with engines' own configuration files
hook_files        CDI files with hooks, for our hook and under NVIDIA's names
attacks           hostile images
live_scene        a running container with hostile processes, and what must not change outside it
podman_pairs      CDI files and requests for the comparison with podman
cri               containerd with its CRI plugin, called as the kubelet does
debian-root.sh    Debian roots: made once, copied, entered
matrix            the table of engines and checks
requirements      skip, or fail, when a program is missing
"""
