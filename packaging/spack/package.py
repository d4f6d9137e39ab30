# Of weft, under MIT OR Apache-2.0 as weft itself.
"""A recipe of Spack: put this folder as packages/weft into a repository of your own."""

from spack.package import *


class Weft(Package):
    """TCP programs, files, disks and messages over one fabric without the kernel."""

    homepage = "https://github.com/weft-fabric/weft"
    git = "https://github.com/weft-fabric/weft.git"

    license("MIT OR Apache-2.0")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    # Found when programs start, and what goes between hosts needs it.
    depends_on("libfabric", type="run", when="+libfabric")

    variant("libfabric", default=True, description="Have libfabric, for traffic between hosts")

    requires("platform=linux")
    requires("target=x86_64:")

    def install(self, spec, prefix):
        packages = ["weft-cli", "weft-preload", "weft-shmem", "weft-fi", "weft-c"]
        chosen = ["-p" + name for name in packages]
        cargo = which("cargo", required=True)
        jobs = "-j{0}".format(make_jobs)
        cargo("build", "--release", "--locked", jobs, "--lib", "--bins", *chosen)
        Executable("target/release/weft")("install", prefix)

    def setup_run_environment(self, env):
        # MPI finds weft's provider of libfabric there.
        env.prepend_path("FI_PROVIDER_PATH", self.prefix.lib.weft)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.weft)("--version")
