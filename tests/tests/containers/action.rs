//! The composite action: its file is one, and its steps run as a runner runs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use system_tests::commons::Commons;
use system_tests::lab::own_loopback;
use system_tests::paths::{self, Scratch};
use system_tests::process::{Cmd, User};

type Names = BTreeMap<String, String>;

/// `action.yml`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Action {
    name: String,
    description: String,
    inputs: BTreeMap<String, Input>,
    outputs: BTreeMap<String, Output>,
    runs: Runs,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Input {
    description: String,
    default: String,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Output {
    description: String,
    value: String,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Runs {
    using: String,
    steps: Vec<Step>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Step {
    name: String,
    id: Option<String>,
    #[serde(rename = "if")]
    condition: Option<String>,
    shell: String,
    #[serde(default)]
    env: Names,
    run: String,
}

/// What an expression such as `${{ inputs.archive }}` stands for; text without one is itself.
fn value(text: &str, inputs: &Names) -> Result<String> {
    let Some(expression) = text.strip_prefix("${{").and_then(|text| text.strip_suffix("}}")) else {
        return Ok(text.to_owned());
    };
    match expression.trim().split_once('.') {
        Some(("inputs", name)) => inputs.get(name).cloned().with_context(|| format!("no {name}")),
        Some(("github", "action_path")) => {
            Ok(paths::repository().join("action").display().to_string())
        }
        _ => bail!("{text} is more than this test understands"),
    }
}

/// A runner's folders and files.
struct Runner {
    scratch: Scratch,
    inputs: Names,
}

impl Runner {
    const FILES: [(&str, &str); 3] =
        [("GITHUB_ENV", "env"), ("GITHUB_PATH", "path"), ("GITHUB_OUTPUT", "output")];

    fn step(&self, step: &Step) -> Result<()> {
        ensure!(step.shell == "bash", "{step:?}");
        // The only condition that there is: an archive is given here.
        if step.condition.as_deref() == Some("inputs.archive == ''") {
            return Ok(());
        }
        ensure!(step.condition.is_none(), "{step:?}");
        let script = self.scratch.join("step.sh");
        fs::write(&script, &step.run)?;
        let bash = ["--noprofile", "--norc", "-eo", "pipefail"];
        let mut cmd = self.cmd("bash").args(bash).arg(&script);
        for (name, text) in &step.env {
            cmd = cmd.env(name, value(text, &self.inputs)?);
        }
        for (variable, file) in Self::FILES {
            cmd = cmd.env(variable, self.scratch.join(file));
        }
        cmd.limit(Duration::from_secs(30)).check().with_context(|| step.name.clone())?;
        Ok(())
    }

    /// A command of an ordinary user in the job's folder.
    fn cmd(&self, program: impl AsRef<Path>) -> Cmd {
        let cmd = Cmd::new(program.as_ref()).env("RUNNER_TEMP", self.scratch.path());
        cmd.dir(self.scratch.path()).as_user(Some(User::NOBODY)).without_env("LD_LIBRARY_PATH")
    }

    /// A line `NAME=VALUE` that a step wrote.
    fn written(&self, file: &str, name: &str) -> Result<String> {
        let text = fs::read_to_string(self.scratch.join(file))?;
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned).with_context(|| format!("no {name} in {text}"))
    }
}

/// Ends the daemon as the end of a job does.
struct Orphan(Pid);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn the_action_gives_a_job_a_device() -> Result<()> {
    let name = "the_action_gives_a_job_a_device";
    let Some(commons) = Commons::open(name, &["ibv_devinfo"], &[])? else { return Ok(()) };
    let text = fs::read_to_string(paths::repository().join("action/action.yml"))?;
    let action: Action = serde_yaml_ng::from_str(&text)?;
    ensure!(action.runs.using == "composite" && !action.name.is_empty(), "{action:?}");
    ensure!(!action.description.is_empty(), "{action:?}");
    let described = action.inputs.values().map(|input| &input.description);
    let mut described = described.chain(action.outputs.values().map(|output| &output.description));
    ensure!(described.all(|text| !text.is_empty()), "{action:?}");

    let scratch = Scratch::new("runner")?;
    let archive = scratch.join("soft-rnic.tar");
    let tree = commons.dist.root();
    let parent = tree.parent().context("a folder")?;
    Cmd::new("tar").arg("-cf").arg(&archive).arg("-C").arg(parent).arg("dist").check()?;
    let mut inputs: Names =
        action.inputs.iter().map(|(name, input)| (name.clone(), input.default.clone())).collect();
    inputs.insert("archive".into(), archive.display().to_string());
    // On 127.0.0.1 another daemon may be at work.
    inputs.insert("options".into(), format!("--address {}", own_loopback()));
    let runner = Runner { scratch, inputs };
    for (_, file) in Runner::FILES {
        Cmd::new("touch")
            .arg(file)
            .dir(runner.scratch.path())
            .as_user(Some(User::NOBODY))
            .check()?;
    }
    for step in &action.runs.steps {
        runner.step(step)?;
    }
    let pid = fs::read_to_string(runner.scratch.join("soft-rnic/rnicd.pid"))?.trim().parse()?;
    let _daemon = Orphan(Pid::from_raw(pid).context("a process")?);
    let outputs: Vec<_> = action.runs.steps.iter().filter_map(|step| step.id.as_deref()).collect();
    for (name, output) in &action.outputs {
        let named = output.value.trim_start_matches("${{ steps.").trim_end_matches(" }}");
        let (step, output) = named.split_once(".outputs.").context("an output of a step")?;
        ensure!(outputs.contains(&step) && output == name, "{named}");
        runner.written("output", output)?;
    }
    // A later step.
    let devinfo = runner.cmd(commons.lab.tools.program("ibv_devinfo")?);
    let devinfo = devinfo.env("RNIC_SOCKET", runner.written("env", "RNIC_SOCKET")?);
    let devinfo = devinfo.env("LD_LIBRARY_PATH", runner.written("env", "LD_LIBRARY_PATH")?);
    let said = devinfo.check()?;
    ensure!(said.contains("rnic0") && said.contains("PORT_ACTIVE"), "{said}");
    let path = fs::read_to_string(runner.scratch.join("path"))?;
    ensure!(Path::new(path.trim()).join("rnic").is_file(), "{path}");
    Ok(())
}
