"""What a shared library asks of the system and what it exports, by auditwheel's pyelftools."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUN_TIME = re.compile(
    r"(ld-linux[\w-]*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so.*"
)
# Templates and type names of the standard library, which C++ libraries export alike.
SHARED = re.compile(r"_Z(?!NK?(6astrai|8pybind11))")


@dataclass(frozen=True, slots=True)
class Listing:
    needed: list[str]  # names of libraries
    versions: dict[str, str]  # highest version asked of each family: GLIBC -> 2.34
    exported: list[str]  # mangled; those that match SHARED are counted alone
    n_shared: int

    def __str__(self) -> str:
        versions = ", ".join(f"{family} {version}" for family, version in self.versions.items())
        return (
            f"needs {', '.join(self.needed)}\nat most {versions}\n"
            f"exports {', '.join(self.exported)}, and {self.n_shared} names of the C++ library"
        )


def listing(library: Path) -> Listing:
    from elftools.elf.elffile import ELFFile  # only the checks of binaries need it

    with library.open("rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        versions = _highest_versions(elf.get_section_by_name(".gnu.version_r"))
        defined = [
            symbol.name
            for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
            if symbol.name and symbol["st_shndx"] != "SHN_UNDEF"
        ]
    own = sorted(name for name in defined if not SHARED.match(name))
    return Listing(needed, versions, own, len(defined) - len(own))


def _highest_versions(section: object) -> dict[str, str]:
    """From names such as GLIBC_2.34 and CXXABI_1.3.13."""
    highest: dict[str, tuple[int, ...]] = {}
    for _library, wanted in section.iter_versions():  # type: ignore[attr-defined]
        for one in wanted:
            if found := re.fullmatch(r"(\w+?)_([\d.]+)", one.name):
                version = tuple(map(int, found.group(2).split(".")))
                highest[found.group(1)] = max(highest.get(found.group(1), ()), version)
    return {name: ".".join(map(str, version)) for name, version in sorted(highest.items())}


def problems(told: Listing) -> list[str]:
    """Why the extension is not one that every Python of its kind can load beside others."""
    found = [f"links {name}" for name in told.needed if not RUN_TIME.fullmatch(name)]
    return found + [f"exports {name}" for name in told.exported if name != "PyInit__C"]
