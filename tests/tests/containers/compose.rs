//! As much of the compose file's form as ours uses. A field that it does not know is an error.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use system_tests::paths;
use system_tests::process::Cmd;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compose {
    services: BTreeMap<String, Service>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    build: Option<Build>,
    pub(crate) image: String,
    pub(crate) cap_drop: Vec<String>,
    pub(crate) security_opt: Vec<String>,
    #[serde(default)]
    depends_on: Vec<String>,
    pub(crate) command: Vec<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Build {
    context: String,
    dockerfile: String,
}

impl Compose {
    /// Our file.
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(paths::repository().join("compose.yaml"))?;
        serde_yaml_ng::from_str(&text).context("compose.yaml")
    }

    pub(crate) fn service(&self, name: &str) -> Result<&Service> {
        self.services.get(name).with_context(|| format!("no service {name}"))
    }
}

/// The words behind an instruction of Containerfile, a line each time that it is there.
fn instructions(name: &str) -> Result<Vec<Vec<String>>> {
    let text = fs::read_to_string(paths::repository().join("Containerfile"))?.replace("\\\n", " ");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let of = |line| str::strip_prefix(line, name)?.strip_prefix(' ').map(words);
    Ok(text.lines().filter_map(of).collect())
}

#[test]
fn the_compose_file_runs_two_containers_without_privileges() -> Result<()> {
    let compose = Compose::read()?;
    let (server, client) = (compose.service("server")?, compose.service("client")?);
    ensure!(compose.services.len() == 2 && client.depends_on == ["server"], "{compose:?}");
    let build = server.build.as_ref().context("the server's image is built")?;
    ensure!(build.context == "." && build.dockerfile == "Containerfile", "{build:?}");
    ensure!(server.image == client.image && client.build.is_none(), "{compose:?}");
    for service in [server, client] {
        ensure!(service.cap_drop == ["ALL"], "{service:?}");
        ensure!(service.security_opt == ["no-new-privileges"], "{service:?}");
    }
    let wrong = "services: { server: { image: x, privileged: true, cap_drop: [], command: [] } }";
    ensure!(serde_yaml_ng::from_str::<Compose>(wrong).is_err(), "an unknown field is accepted");
    Ok(())
}

#[test]
fn the_image_is_made_of_what_is_there() -> Result<()> {
    let repository = paths::repository();
    let stages = instructions("FROM")?;
    let [build, image] = &stages[..] else { anyhow::bail!("{stages:?}") };
    ensure!(*build == ["${RUST}", "AS", "build"] && *image == ["${DEBIAN}"], "{stages:?}");
    for copied in instructions("COPY")? {
        match &copied[..] {
            [from, ..] if from == "--from=build" => {}
            [file, _] => ensure!(repository.join(file).exists(), "{file}"),
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(instructions("USER")? == [["1000"]], "an image of root");
    let entrypoint = repository.join("packaging/container-entrypoint");
    let mode = fs::metadata(&entrypoint)?.permissions().mode();
    ensure!(mode & 0o111 == 0o111, "the entrypoint cannot be executed");
    Cmd::new("sh").arg("-n").arg(&entrypoint).check()?;
    Ok(())
}
