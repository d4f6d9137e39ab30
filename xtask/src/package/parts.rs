//! The packages, and which files belong to which.

use std::path::Path;

/// A package.
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// One line, then what it is for.
    pub text: [&'static str; 2],
    /// Packages of the same version that it needs.
    pub needs: &'static [&'static str],
    /// Packages of Debian that have files of the same names.
    pub conflicts: &'static [&'static str],
    /// How its files begin. The first part that has one gets a file; the last has all others.
    files: &'static [&'static str],
}

/// All packages. Those without files are not made.
pub const PARTS: [Part; 6] = [
    Part {
        name: "weft-daemon",
        text: [
            "node daemon of weft as a service",
            "Starts the daemon that serves all users of the machine, and joins hosts.",
        ],
        needs: &["weft"],
        conflicts: &[],
        files: &["usr/lib/systemd/", "usr/lib/tmpfiles.d/"],
    },
    Part {
        name: "weft-oshmem",
        text: [
            "weft's OpenSHMEM by its standard names",
            "The names oshcc, oshc++ and oshrun for the commands of `weft`, which work without it.",
        ],
        needs: &["weft", "weft-shmem", "weft-dev"],
        conflicts: &["openmpi-bin"],
        files: &["usr/bin/osh"],
    },
    Part {
        name: "libweft",
        text: ["weft's fabric for C", "The library that programs of weft.h are linked with."],
        needs: &["weft"],
        conflicts: &[],
        files: &["usr/lib/libweft.so."],
    },
    Part {
        name: "weft-dev",
        text: [
            "headers and manual pages of weft's libraries",
            "What programs of weft's libraries are compiled with: headers, pkg-config.",
        ],
        needs: &["weft", "weft-shmem", "libweft"],
        conflicts: &[],
        files: &["usr/include/", "usr/lib/pkgconfig/", "usr/lib/libweft.", "usr/share/man/man3/"],
    },
    Part {
        name: "weft-shmem",
        text: [
            "OpenSHMEM and a libfabric provider over weft",
            "The library of OpenSHMEM, and the provider by which MPI uses weft.",
        ],
        needs: &["weft"],
        conflicts: &[],
        files: &["usr/lib/libweft_shmem.so", "usr/lib/weft/libweft-fi.so"],
    },
    Part {
        name: "weft",
        text: [
            "sockets, files, blocks and messages over one fabric without the kernel",
            "The command `weft` and the library by which programs of TCP use the fabric.",
        ],
        needs: &[],
        conflicts: &[],
        files: &[""],
    },
];

/// The part that a file below `/` belongs to.
pub fn part_of(file: &Path) -> &'static Part {
    let text = file.to_string_lossy();
    let own = |name: &str| {
        let rest = text.strip_prefix("usr/share/doc/").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let has =
        |part: &&Part| own(part.name) || part.files.iter().any(|start| text.starts_with(start));
    PARTS.iter().find(has).unwrap_or(&PARTS[PARTS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_part() {
        for (file, part) in [
            ("usr/bin/weft", "weft"),
            ("usr/bin/oshrun", "weft-oshmem"),
            ("usr/bin/oshc++", "weft-oshmem"),
            ("usr/lib/weft/libweft_preload.so", "weft"),
            ("usr/lib/weft/libweft-fi.so", "weft-shmem"),
            ("usr/lib/libweft_shmem.so", "weft-shmem"),
            ("usr/lib/libweft.so.0", "libweft"),
            ("usr/lib/libweft.so", "weft-dev"),
            ("usr/lib/libweft.a", "weft-dev"),
            ("usr/share/man/man1/weft-run.1.gz", "weft"),
            ("usr/share/man/man3/shmem_put.3.gz", "weft-dev"),
            ("usr/share/doc/weft-dev/copyright", "weft-dev"),
            ("usr/share/doc/weft/copyright", "weft"),
            ("usr/lib/systemd/system/weft-daemon.service", "weft-daemon"),
            ("usr/lib/tmpfiles.d/weft.conf", "weft-daemon"),
        ] {
            assert_eq!(part_of(Path::new(file)).name, part, "{file}");
        }
    }

    #[test]
    fn what_a_part_needs_is_there() {
        for part in &PARTS {
            for need in part.needs {
                assert!(PARTS.iter().any(|other| other.name == *need), "{need}");
            }
        }
    }
}
