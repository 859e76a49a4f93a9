//! The rules, run over this repository.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kachel_tidy::{Report, Tree, check, check_dependencies, packages_of_metadata};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Prints what each rule checked, past the test harness's capture, and fails on findings.
fn judge(report: &Report) {
    let mut told = String::new();
    for (what, count) in report.looked.iter().chain(&report.counted) {
        told += &format!("tidy: {count} {what}\n");
    }
    for warning in &report.warnings {
        told += &format!("tidy: warning: {warning}\n");
    }
    std::io::stderr().write_all(told.as_bytes()).unwrap();
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
}

/// The output of `cargo metadata` for a manifest. The first attempt is offline; if packages are
/// missing, the second one uses the network.
fn metadata(manifest: &str) -> String {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut told = String::new();
    for network in ["--offline", "--locked"] {
        let metadata = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--filter-platform", host, network])
            .args(["--manifest-path", manifest])
            .current_dir(root())
            .output()
            .unwrap();
        if metadata.status.success() {
            return String::from_utf8(metadata.stdout).unwrap();
        }
        told += &String::from_utf8_lossy(&metadata.stderr);
    }
    panic!("cargo metadata: {told}");
}

#[test]
fn the_repository_keeps_its_rules() {
    let report = check(&Tree::read(&root()).unwrap());
    judge(&report);
    for (what, count) in report.looked {
        assert!(count > 0, "I2: nothing looked at: {what}");
    }
}

#[test]
fn dependencies_have_reasons() {
    let mut packages = packages_of_metadata(&metadata("Cargo.toml")).unwrap();
    // The fuzz targets are a workspace of their own.
    packages.extend(packages_of_metadata(&metadata("fuzz/Cargo.toml")).unwrap());
    judge(&check_dependencies(&Tree::read(&root()).unwrap(), &packages));
}
