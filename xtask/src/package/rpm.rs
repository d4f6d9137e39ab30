//! Packages of Red Hat and its kin, by rpmbuild.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use super::parts::{PARTS, Part};
use super::staged::{Staged, visited};
use super::{Build, ran};

/// Makes one package of each part.
pub fn make(build: &Build, staged: &Staged, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let top = output.join("rpm");
    if top.exists() {
        fs::remove_dir_all(&top)?;
    }
    fs::create_dir_all(&top)?;
    let scripts = fs::read_to_string(build.sources.join("packaging/rpm/weft-daemon.scripts"))?;
    let specification = top.join("weft.spec");
    fs::write(&specification, specification_of(build, staged) + &scripts)?;
    let place = format!("_topdir {}", top.display());
    ran(Command::new("rpmbuild").args(["-bb", "--quiet", "--define", &place]).arg(&specification))?;
    let mut made = Vec::new();
    for file in visited(&top.join("RPMS"))? {
        let place = output.join(file.file_name().unwrap_or(file.as_os_str()));
        fs::rename(top.join("RPMS").join(&file), &place)?;
        made.push(place);
    }
    let wanted = staged.files.len();
    ensure!(made.len() == wanted, "rpmbuild made {} packages of {wanted}", made.len());
    Ok(made)
}

/// Where a file lies: pkg-config looks in `lib64` there, or in `share`.
fn place_of(file: &Path) -> PathBuf {
    match file.strip_prefix("usr/lib/pkgconfig") {
        Ok(name) => Path::new("usr/share/pkgconfig").join(name),
        Err(_) => file.to_owned(),
    }
}

/// Folders that every machine has. Others belong to the packages that have files in them, or they
/// would stay.
const OF_ALL: [&str; 11] = [
    "",
    "usr",
    "usr/bin",
    "usr/include",
    "usr/lib",
    "usr/lib/systemd",
    "usr/lib/systemd/system",
    "usr/share",
    "usr/share/doc",
    "usr/share/man/man1",
    "usr/share/man/man3",
];

/// The folders of a file that are not on every machine.
fn own_folders(file: &Path) -> impl Iterator<Item = &Path> {
    let is_own = |folder: &&Path| !OF_ALL.iter().any(|all| Path::new(all).starts_with(folder));
    file.ancestors().skip(1).filter(is_own)
}

/// The specification by which rpmbuild makes the packages: one for all of them.
fn specification_of(build: &Build, staged: &Staged) -> String {
    let made = || PARTS.iter().filter(|part| staged.files.contains_key(part.name));
    let needs = |part: &Part| {
        let same = part.needs.iter().map(|name| format!("Requires: {name} = %{{version}}\n"));
        format!("Requires: glibc >= {}, libgcc\n{}", staged.glibc, same.collect::<String>())
    };
    let own = &PARTS[PARTS.len() - 1];
    let mut text = format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\nName: {}\nVersion: \
         {}\nRelease: 1\nSummary: {}\nLicense: MIT OR Apache-2.0\nAutoReqProv: no\n{}\n\
         %description\n{}\n\n",
        own.name,
        build.version,
        own.text[0],
        needs(own),
        own.text[1],
    );
    for part in made().filter(|part| part.name != own.name) {
        text += &format!(
            "%package -n {}\nSummary: {}\nAutoReqProv: no\n{}\n%description -n {}\n{}\n\n",
            part.name,
            part.text[0],
            needs(part),
            part.name,
            part.text[1],
        );
    }
    text += "%install\n";
    for file in staged.files.values().flatten() {
        let (from, to) = (staged.root.join(file), place_of(file));
        let folder = to.parent().unwrap_or(Path::new(""));
        text += &format!("mkdir -p \"%{{buildroot}}/{}\"\n", folder.display());
        text += &format!("cp -P --preserve=mode \"{}\" ", from.display());
        text += &format!("\"%{{buildroot}}/{}\"\n", to.display());
    }
    text.push('\n');
    for part in made() {
        text += &format!("%files -n {}\n%defattr(-,root,root)\n", part.name);
        let files: Vec<_> =
            staged.files.get(part.name).into_iter().flatten().map(|file| place_of(file)).collect();
        let folders: BTreeSet<&Path> = files.iter().flat_map(|file| own_folders(file)).collect();
        for folder in folders {
            text += &format!("%dir \"/{}\"\n", folder.display());
        }
        for file in files {
            text += &format!("\"/{}\"\n", file.display());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_has_each_part_that_has_files() {
        let files = [
            ("weft", vec!["usr/bin/weft".into()]),
            ("weft-dev", vec!["usr/lib/pkgconfig/weft-shmem.pc".into()]),
        ];
        let staged =
            Staged { root: "/staged".into(), files: files.into(), glibc: "2.34".to_owned() };
        let build = Build { version: "1.2.3".into(), ..Build::default() };
        let text = specification_of(&build, &staged);
        assert!(text.contains("%package -n weft-dev\n"), "{text}");
        assert!(!text.contains("weft-daemon\n"), "{text}");
        assert!(text.contains("Requires: weft-shmem = %{version}\n"), "{text}");
        assert!(text.contains("\n\"/usr/share/pkgconfig/weft-shmem.pc\"\n"), "{text}");
        assert!(text.contains("\n%dir \"/usr/share/pkgconfig\"\n"), "{text}");
        assert!(!text.contains("%dir \"/usr/bin\"") && !text.contains("%dir \"/usr/share\""));
    }
}
