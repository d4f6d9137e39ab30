//! `cargo xtask package`: packages of a release build, below `target/package`.
//!
//! `weft install` writes the files of all packages below a directory that stands for `/`. [`PARTS`]
//! says which package a file belongs to. Debian's and Red Hat's own tools make the packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};

use crate::cargo::{cargo, root, target};

/// The kinds of packages.
const KINDS: [&str; 4] = ["deb", "rpm", "tar", "source"];

/// A package.
struct Part {
    name: &'static str,
    /// One line, then what it is for.
    text: [&'static str; 2],
    /// Packages of the same version that it needs.
    needs: &'static [&'static str],
    /// How its files begin. The first part that has one gets a file; the last has all others.
    files: &'static [&'static str],
}

const PARTS: [Part; 4] = [
    Part {
        name: "weft-daemon",
        text: [
            "node daemon of weft as a service",
            "Starts the daemon that serves all users of the machine, and joins hosts.",
        ],
        needs: &["weft"],
        files: &["usr/lib/systemd/"],
    },
    Part {
        name: "weft-dev",
        text: [
            "headers and manual pages of weft's libraries",
            "What programs of OpenSHMEM are compiled with: headers, pkg-config, oshcc.",
        ],
        needs: &["weft", "weft-shmem"],
        files: &["usr/include/", "usr/lib/pkgconfig/", "usr/share/man/man3/", "usr/bin/oshc"],
    },
    Part {
        name: "weft-shmem",
        text: [
            "OpenSHMEM and a libfabric provider over weft",
            "The library of OpenSHMEM, its launcher, and the provider by which MPI uses weft.",
        ],
        needs: &["weft"],
        files: &["usr/lib/libweft_shmem.so", "usr/lib/weft/libweft-fi.so", "usr/bin/oshrun"],
    },
    Part {
        name: "weft",
        text: [
            "sockets, files, blocks and messages over one fabric without the kernel",
            "The command `weft` and the library by which programs of TCP use the fabric.",
        ],
        needs: &[],
        files: &[""],
    },
];

/// Makes the packages of the kinds that are named, or all.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    for kind in arguments {
        ensure!(
            KINDS.contains(&kind.as_str()),
            "{kind} is no kind; there are {}",
            KINDS.join(", ")
        );
    }
    let all: Vec<String> = KINDS.map(str::to_owned).to_vec();
    let kinds = if arguments.is_empty() { &all } else { arguments };
    let output = target().join("package");
    fs::create_dir_all(&output)?;
    let mut made = Vec::new();
    let binary: Vec<&str> =
        kinds.iter().map(String::as_str).filter(|kind| *kind != "source").collect();
    if !binary.is_empty() {
        let staged = output.join("root");
        let files = staged_files(&staged)?;
        for kind in binary {
            made.extend(match kind {
                "deb" => debs(&output, &staged, &files)?,
                "rpm" => rpms(&output, &staged, &files)?,
                _ => vec![tarball(&output, &staged)?],
            });
        }
    }
    if kinds.iter().any(|kind| kind == "source") {
        made.push(source(&output)?);
    }
    for file in made {
        let bytes = fs::metadata(&file)?.len();
        println!("{} ({:.1} MB)", file.display(), bytes as f64 / 1e6);
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds a release and installs it below `staged`. Returns the files of each part, below it.
fn staged_files(staged: &Path) -> anyhow::Result<BTreeMap<&'static str, Vec<PathBuf>>> {
    let packages =
        ["weft-cli", "weft-preload", "weft-shmem", "weft-fi"].map(|name| format!("-p{name}"));
    ran(cargo(&["build", "--release"]).args(packages).args(["--lib", "--bins"]))?;
    if staged.exists() {
        fs::remove_dir_all(staged).with_context(|| staged.display().to_string())?;
    }
    let weft = target().join("release/weft");
    ran(Command::new(&weft).args(["install", "--root"]).arg(staged).arg("/usr"))?;
    let unit = staged.join("usr/lib/systemd/system/weft-daemon.service");
    fs::create_dir_all(unit.parent().context("a file is in a directory")?)?;
    fs::copy(root().join("packaging/weft-daemon.service"), &unit)?;
    let mut files = BTreeMap::new();
    visit(staged, &mut |path| {
        let below = path.strip_prefix(staged)?.to_owned();
        files.entry(part_of(&below).name).or_insert_with(Vec::new).push(below);
        Ok(())
    })?;
    // Nobody needs the symbols of debuggers to run it.
    for library in [
        "usr/bin/weft",
        "usr/lib/weft/libweft_preload.so",
        "usr/lib/libweft_shmem.so",
        "usr/lib/weft/libweft-fi.so",
    ] {
        ran(Command::new("strip").arg("--strip-debug").arg(staged.join(library)))?;
    }
    Ok(files)
}

/// The part that a file below `/` belongs to.
fn part_of(file: &Path) -> &'static Part {
    let text = file.to_string_lossy();
    let has = |part: &&Part| part.files.iter().any(|start| text.starts_with(start));
    PARTS.iter().find(has).unwrap_or(&PARTS[PARTS.len() - 1])
}

fn visit(folder: &Path, each: &mut dyn FnMut(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            visit(&entry.path(), each)?;
        } else {
            each(&entry.path())?;
        }
    }
    Ok(())
}

/// Copies files of one part below `to`, links as links.
fn copied(staged: &Path, files: &[PathBuf], to: &Path) -> anyhow::Result<()> {
    for file in files {
        let place = to.join(file);
        fs::create_dir_all(place.parent().context("a file is in a directory")?)?;
        ran(Command::new("cp")
            .arg("-P")
            .arg("--preserve=mode")
            .arg(staged.join(file))
            .arg(&place))?;
    }
    Ok(())
}

fn debs(
    output: &Path,
    staged: &Path,
    files: &BTreeMap<&'static str, Vec<PathBuf>>,
) -> anyhow::Result<Vec<PathBuf>> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut made = Vec::new();
    for part in &PARTS {
        let folder = output.join("deb").join(part.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let own = files.get(part.name).context("a part without files")?;
        copied(staged, own, &folder)?;
        let control = folder.join("DEBIAN");
        fs::create_dir_all(&control)?;
        fs::write(control.join("control"), control_of(part, machine))?;
        for (script, text) in scripts_of(part) {
            let path = control.join(script);
            fs::write(&path, text)?;
            ran(Command::new("chmod").arg("755").arg(&path))?;
        }
        let file = output.join(format!("{}_{}_{machine}.deb", part.name, version()));
        ran(Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&folder)
            .arg(&file)
            .stdout(std::process::Stdio::null()))?;
        made.push(file);
    }
    Ok(made)
}

/// The file by which dpkg knows a package.
fn control_of(part: &Part, machine: &str) -> String {
    let same = part.needs.iter().map(|name| format!("{name} (= {})", version()));
    let needs: Vec<String> = std::iter::once("libc6 (>= 2.34)".to_owned()).chain(same).collect();
    let suggests = if part.name == "weft" { "Suggests: libfabric1, weft-daemon\n" } else { "" };
    let [line, text] = part.text;
    format!(
        "Package: {}\nVersion: {}\nArchitecture: {machine}\nMaintainer: the weft authors \
         <weft@localhost>\nSection: net\nPriority: optional\nDepends: {}\n{suggests}Description: \
         {line}\n {text}\n",
        part.name,
        version(),
        needs.join(", "),
    )
}

/// The scripts that dpkg runs with a package: systemd learns of the unit, and a daemon that ran
/// goes on with the new program.
fn scripts_of(part: &Part) -> Vec<(&'static str, &'static str)> {
    if part.name != "weft-daemon" {
        return Vec::new();
    }
    vec![
        ("postinst", include_str!("../../packaging/weft-daemon.postinst")),
        ("prerm", include_str!("../../packaging/weft-daemon.prerm")),
        ("postrm", include_str!("../../packaging/weft-daemon.postrm")),
    ]
}

fn rpms(
    output: &Path,
    staged: &Path,
    files: &BTreeMap<&'static str, Vec<PathBuf>>,
) -> anyhow::Result<Vec<PathBuf>> {
    let top = output.join("rpm");
    fs::create_dir_all(&top)?;
    let specification = top.join("weft.spec");
    fs::write(&specification, specification_of(staged, files))?;
    ran(Command::new("rpmbuild")
        .args(["-bb", "--quiet", "--define"])
        .arg(format!("_topdir {}", top.display()))
        .arg(&specification))?;
    let mut made = Vec::new();
    visit(&top.join("RPMS"), &mut |path| {
        let is_of_now = path.to_string_lossy().contains(&format!("-{}-", version()));
        if is_of_now {
            made.push(path.to_owned());
        }
        Ok(())
    })?;
    ensure!(made.len() == PARTS.len(), "rpmbuild made {} packages", made.len());
    Ok(made)
}

/// The specification by which rpmbuild makes the packages: one for all of them.
fn specification_of(staged: &Path, files: &BTreeMap<&'static str, Vec<PathBuf>>) -> String {
    let own = &PARTS[PARTS.len() - 1];
    let mut text = format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\nName: weft\nVersion: \
         {}\nRelease: 1\nSummary: {}\nLicense: MIT OR Apache-2.0\nAutoReqProv: no\nRequires: \
         glibc >= 2.34\n\n%description\n{}\n\n",
        version(),
        own.text[0],
        own.text[1],
    );
    for part in &PARTS[..PARTS.len() - 1] {
        let needs = part.needs.iter().map(|name| format!("Requires: {name} = %{{version}}\n"));
        let needs: String = needs.collect();
        text += &format!(
            "%package -n {}\nSummary: {}\nAutoReqProv: no\n{needs}\n%description -n {}\n{}\n\n",
            part.name, part.text[0], part.name, part.text[1],
        );
    }
    text += &format!(
        "%install\nmkdir -p %{{buildroot}}\ncp -a {}/. %{{buildroot}}/\n\n",
        staged.display()
    );
    for part in &PARTS {
        text += &format!("%files -n {}\n", part.name);
        for file in files.get(part.name).into_iter().flatten() {
            text += &format!("\"/{}\"\n", file.display());
        }
        text.push('\n');
    }
    text + include_str!("../../packaging/weft-daemon.spec-scripts")
}

/// All files as they lie below `/`.
fn tarball(output: &Path, staged: &Path) -> anyhow::Result<PathBuf> {
    let file = output.join(format!("weft-{}-{}-linux.tar.xz", version(), std::env::consts::ARCH));
    ran(Command::new("tar")
        .args(["--owner=0", "--group=0", "--sort=name", "-C"])
        .arg(staged)
        .arg("-cJf")
        .arg(&file)
        .arg("."))?;
    Ok(file)
}

/// The sources with those of all packages that they need: builds without a network.
fn source(output: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("weft-{}", version());
    let folder = output.join("source").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let archive = output.join("source/own.tar");
    ran(Command::new("git")
        .current_dir(root())
        .args(["archive", "--format=tar", "HEAD", "-o"])
        .arg(&archive))?;
    ran(Command::new("tar").arg("-C").arg(&folder).arg("-xf").arg(&archive))?;
    fs::remove_file(&archive)?;
    let vendored = cargo(&["vendor", "--quiet", "--locked", "vendor"])
        .current_dir(&folder)
        .output()
        .context("cargo cannot be run")?;
    ensure!(vendored.status.success(), "{}", String::from_utf8_lossy(&vendored.stderr));
    let configuration = folder.join(".cargo/config.toml");
    let mut text = fs::read_to_string(&configuration)?;
    text.push('\n');
    text += &String::from_utf8_lossy(&vendored.stdout);
    fs::write(&configuration, text)?;
    let file = output.join(format!("{name}-source.tar.xz"));
    ran(Command::new("tar")
        .args(["--owner=0", "--group=0", "--sort=name", "-C"])
        .arg(output.join("source"))
        .args(["-I", "xz -T0 -3", "-cf"])
        .arg(&file)
        .arg(&name))?;
    Ok(file)
}

/// The version of the workspace.
const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Runs a command to its good end.
fn ran(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = match command.status() {
        Ok(status) => status,
        Err(error) => bail!("{program} cannot be run: {error}; install it"),
    };
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_part() {
        for (file, part) in [
            ("usr/bin/weft", "weft"),
            ("usr/bin/oshrun", "weft-shmem"),
            ("usr/bin/oshcc", "weft-dev"),
            ("usr/bin/oshc++", "weft-dev"),
            ("usr/lib/weft/libweft_preload.so", "weft"),
            ("usr/lib/weft/libweft-fi.so", "weft-shmem"),
            ("usr/lib/libweft_shmem.so", "weft-shmem"),
            ("usr/share/man/man1/weft-run.1", "weft"),
            ("usr/share/man/man3/shmem_put.3", "weft-dev"),
            ("usr/lib/systemd/system/weft-daemon.service", "weft-daemon"),
        ] {
            assert_eq!(part_of(Path::new(file)).name, part, "{file}");
        }
    }

    #[test]
    fn packages_need_those_of_their_own_version() {
        let text = control_of(&PARTS[1], "amd64");
        let needs =
            format!("Depends: libc6 (>= 2.34), weft (= {0}), weft-shmem (= {0})\n", version());
        assert!(text.contains(&needs), "{text}");
        assert!(text.ends_with("oshcc.\n"), "{text}");
    }
}
