//! The commands of the documents: those that a reader can type on one host run here, in the order
//! of the page; every other one is a part of a test that is named here.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use system_tests::book;
use system_tests::commons::Commons;
use system_tests::dist::{DIST_ENV, Dist, cargo};
use system_tests::lab::{Lab, Need, long_form};
use system_tests::netns::Netns;
use system_tests::paths::{self, Scratch};
use system_tests::process::{Cmd, User};

const PROGRAMS: [&str; 4] = ["ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw", "rping"];

/// The pages whose commands are typed here, and by whom.
const HERE: [(&str, Reader); 5] = [
    ("README.md", Reader::Anybody),
    ("docs/README.md", Reader::Anybody),
    ("docs/run.md", Reader::Anybody),
    ("docs/host.md", Reader::Root),
    (OBSERVE, Reader::Anybody),
];
/// README.md has one command of each kind that it has.
const OBSERVE: &str = "docs/observe.md";

/// Commands that are not, and the test that runs them; `...` stands for the rest of one.
const ELSEWHERE: [(&str, &str); 31] = [
    ("cargo xtask demo", "the_long_commands_of_the_repository_run"),
    ("cargo xtask package", "packages_that_are_made_twice_are_the_same"),
    ("cargo xtask test", "the_commands_of_the_documents_exist"),
    ("docker compose ...", "two_containers_of_the_image_reach_each_other"),
    ("docker run --rm soft-rnic ...", "two_containers_of_the_image_reach_each_other"),
    ("docker run -v ...", "scripts_find_a_device_its_interface_and_its_counters"),
    ("export LD_LIBRARY_PATH=...", "a_host_with_the_service_gives_its_users_a_device"),
    ("export RNIC_SOCKET=/run/rnicd/eth1.sock", "a_host_with_the_service_gives_its_users_a_device"),
    ("grep ...", "all_that_is_said_of_disturbed_packets_agrees_to_the_packet"),
    ("ibv_devinfo", "a_host_with_the_service_gives_its_users_a_device"),
    ("kubectl ...", "pods_have_a_device_each"),
    ("mpirun ...", "four_ranks_on_four_hosts"),
    ("rnic capture -w - | ...", "data_is_right_and_tshark_reads_what_we_read"),
    ("rnic capture -w trouble ...", "forced_errors_end_programs_and_captures"),
    ("rnic explain ...", "all_that_is_said_of_disturbed_packets_agrees_to_the_packet"),
    ("rnic fault run ...", "a_scenario_starts_and_stops_faults"),
    ("rnic run --engine program ...", "functions_talk_with_functions_and_daemons"),
    ("rnic run --rsockets ...", "tcp_programs_run_over_rsockets"),
    ("rnic run --shared-memory ...", "every_byte_between_two_daemons"),
    ("rnic run -- PROGRAM ...", "the_exit_status_is_the_programs"),
    ("rnic watch --picture ...", "a_picture_of_the_view_needs_no_terminal"),
    ("rnic watch --web ...", "the_live_page_follows_a_lossy_connection"),
    ("rnic watch ...", "the_view_shows_a_lossy_connection_and_leaves_the_terminal_as_it_was"),
    ("rnicd --netdev eth0 ...", "a_daemon_in_each_container_as_the_page_says"),
    ("rnic run -- ib_write_bw -x 0", "a_daemon_in_each_container_as_the_page_says"),
    ("soft-rnic-*/bin/rnic ...", "a_job_unpacks_the_archive_as_the_page_says"),
    ("sudo -E cargo xtask cluster ...", "the_long_commands_of_the_repository_run"),
    ("sudo apt install ...", "a_fresh_debian_12_installs_upgrades_and_removes_it"),
    ("sudo systemctl ...", "a_fresh_debian_12_installs_upgrades_and_removes_it"),
    ("tar -xf soft-rnic ...", "a_job_unpacks_the_archive_as_the_page_says"),
    ("tar -xf target/package ...", "the_archive_is_unpacked_anywhere_and_runs_programs"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    Anybody,
    Root,
}

fn is_like(command: &str, form: &str) -> bool {
    match form.strip_suffix("...") {
        Some(beginning) => command.starts_with(beginning.trim_end()),
        None => command == form,
    }
}

fn is_elsewhere(command: &str) -> bool {
    ELSEWHERE.iter().any(|(form, _)| is_like(command, form))
}

/// A host with an interface, and the folder of a user.
struct Host {
    netns: Netns,
    home: Scratch,
    reader: Reader,
}

/// What every script begins with. `serves` runs the server of what comes next, `stays` what its
/// reader would stop, and `does` anything else, again where its server may not listen yet. Servers
/// end with their `block`.
const BEGINNING: &str = r#"
set -u
served= stayed= number=0
sudo() { "$@"; }
fail() { echo "failed: $1"; cat log.*; exit 1; }
block() {
    for pid in $served; do wait $pid || fail "a server"; done
    served=
}
serves() {
    number=$((number + 1))
    sh -c "exec $1" >log.$number 2>&1 &
    served="$served $!"
}
stays() {
    number=$((number + 1))
    sh -c "exec ${1#sudo }" >log.$number 2>&1 &
    stayed="$! $stayed"
    for try in $(seq 300); do
        if [ -s log.$number ] && grep -q . log.$number; then return; fi
        sleep 0.05
    done
    fail "$1"
}
does() {
    number=$((number + 1))
    for try in $(seq 100); do
        if eval "$1" >log.$number 2>&1; then return; fi
        sleep 0.1
    done
    fail "$1"
}
"#;

/// Ends what stays, the last first.
const END: &str = r#"
for pid in $stayed; do
    kill -INT $pid
    wait $pid || fail "what stays"
done
cat log.*
"#;

/// What runs until its reader has seen enough.
const STAYS: [&str; 4] = ["rnicd", "sudo rnicd", "rnic capture", "rnic trace"];

fn line(command: &str) -> String {
    let (text, goes_on) = match command.strip_suffix(" &") {
        Some(text) => (text, true),
        None => (command, false),
    };
    let stays = STAYS.iter().any(|beginning| text.starts_with(beginning));
    let how = match (stays && !text.contains("--check"), goes_on) {
        (true, _) => "stays",
        (false, true) => "serves",
        (false, false) => "does",
    };
    format!("{how} '{}'\n", text.replace('\'', "'\\''"))
}

impl Host {
    fn new(reader: Reader) -> Result<Self> {
        let (netns, home) = (Netns::new("book")?, Scratch::new("book")?);
        for words in [
            "link add eth1 mtu 4200 type veth peer name other mtu 4200",
            "link set eth1 up",
            "link set other up",
            "addr add 10.7.0.1/24 dev eth1",
        ] {
            netns.ip(&words.split(' ').collect::<Vec<_>>())?;
        }
        let runtime = home.join("run");
        fs::create_dir(&runtime)?;
        if reader == Reader::Anybody {
            chown(&runtime, Some(User::NOBODY.uid), Some(User::NOBODY.gid))?;
        }
        Ok(Self { netns, home, reader })
    }

    /// Types blocks of commands, one behind the other, and returns what is printed.
    fn types(&self, commons: &Commons, blocks: &[Vec<String>]) -> Result<String> {
        let typed = |block: &Vec<String>| {
            block.iter().map(|command| line(command)).collect::<String>() + "block\n"
        };
        let script: String = blocks.iter().map(typed).collect();
        let script = script.replace("/etc/rnicd.toml", "rnicd.toml");
        let script =
            script.replace("/usr/lib/soft-rnic", &commons.dist.root().display().to_string());
        let bin = commons.dist.bin("rnic");
        let bin = bin.parent().context("a folder")?.display();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
        // The sockets of root's daemons are this host's own.
        let own = "mount -t tmpfs none /run && mkdir /run/rnicd && exec \"$@\"";
        let mut shell = Cmd::new("unshare").args(["--mount", "sh", "-c", own, "sh"]);
        if self.reader == Reader::Anybody {
            shell = shell.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        let script = format!("{BEGINNING}{script}{END}");
        let shell = shell.args(["sh", "-c", &script]).env("PATH", path).dir(self.home.path());
        let shell = shell.env("XDG_RUNTIME_DIR", self.home.join("run")).without_env("RNIC_SOCKET");
        shell.in_netns(Some(self.netns.name())).limit(Duration::from_secs(120)).check()
    }
}

#[test]
fn a_reader_types_the_commands_of_the_pages() -> Result<()> {
    let name = "a_reader_types_the_commands_of_the_pages";
    let Some(commons) = Commons::open(name, &PROGRAMS, &[])? else { return Ok(()) };
    for (page, reader) in HERE.into_iter().filter(|(page, _)| *page != OBSERVE || long_form()) {
        let mut blocks = book::blocks(page)?;
        blocks.iter_mut().for_each(|block| block.retain(|command| !is_elsewhere(command)));
        if page == "README.md" {
            // The commands that look at a daemon are for one that runs.
            blocks.insert(0, vec!["rnicd &".to_owned()]);
        }
        // Those of docs/host.md are ways to start the same daemon.
        let together = if reader == Reader::Root { 1 } else { blocks.len() };
        for blocks in blocks.chunks(together) {
            let host = Host::new(reader)?;
            fs::write(host.home.join("rnicd.toml"), configuration()?)?;
            host.types(&commons, blocks).with_context(|| page.to_owned())?;
        }
    }
    Ok(())
}

/// The configuration file of docs/host.md. Its group is one that the package makes.
fn configuration() -> Result<String> {
    let page = fs::read_to_string(paths::repository().join("docs/host.md"))?;
    let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    Ok(file.context("docs/host.md has a file")?.replace("\"rnic\"", "\"nogroup\""))
}

/// What docs/install.md and docs/run.md say of a host with the package, whose service is the daemon
/// of the unit.
#[test]
fn a_host_with_the_service_gives_its_users_a_device() -> Result<()> {
    let name = "a_host_with_the_service_gives_its_users_a_device";
    let Some(commons) = Commons::open(name, &PROGRAMS, &[])? else { return Ok(()) };
    let unit = fs::read_to_string(paths::repository().join("packaging/rnicd@.service"))?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/sbin/"));
    let start = start.context("the unit starts the daemon")?;
    let service = start.replace("%i", "eth1").replace(" $RNICD_OPTIONS", "");
    let typed = |page, begins: &str| -> Result<Vec<String>> {
        let block = book::blocks(page)?.into_iter().find(|block| block[0].starts_with(begins));
        block.with_context(|| format!("{page} has no {begins}"))
    };
    let host = Host::new(Reader::Root)?;
    let checked = host.types(&commons, &[typed("docs/install.md", "sudo rnicd --check")?])?;
    ensure!(checked.contains("rnicd can start here."), "{checked}");
    let mut first = typed("docs/install.md", "sudo systemctl")?;
    first[0] = service;
    let said = host.types(&commons, &[first, typed("docs/run.md", "export")?])?;
    ensure!(said.contains("rnic_eth1  eth1 ") && said.contains("PORT_ACTIVE"), "{said}");
    Ok(())
}

/// Every command is typed above, or named with the test that runs it.
#[test]
fn no_command_of_the_documents_is_without_a_test() -> Result<()> {
    let pages = HERE.iter().map(|(page, _)| *page).chain(["docs/install.md"]);
    let typed = pages.map(|page| Ok(book::blocks(page)?.concat())).collect::<Result<Vec<_>>>()?;
    let typed = typed.concat();
    let mut commands = Vec::new();
    for page in book::pages()? {
        let all = book::blocks(&page)?.concat();
        let untested =
            all.iter().find(|command| !typed.contains(command) && !is_elsewhere(command));
        ensure!(untested.is_none(), "{page}: no test runs {untested:?}");
        commands.extend(all);
    }
    let mut sources = String::new();
    for folder in ["tests/tests", "crates/rnicd/tests", "xtask/src"] {
        for file in paths::files_below(&paths::repository().join(folder))? {
            sources += &String::from_utf8_lossy(&fs::read(file)?);
        }
    }
    for (form, test) in ELSEWHERE {
        let is_used = commands.iter().any(|command| is_like(command, form));
        ensure!(is_used, "no document has {form}");
        ensure!(sources.contains(&format!("fn {test}(")), "there is no test {test}");
    }
    Ok(())
}

#[test]
fn the_long_commands_of_the_repository_run() -> Result<()> {
    let name = "the_long_commands_of_the_repository_run";
    let Some(_lab) = Lab::open_long(name, Need::Root, &[])? else { return Ok(()) };
    for command in [&["demo"][..], &["cluster", "--hosts", "4"]] {
        let run = cargo().arg("xtask").args(command).env(DIST_ENV, Dist::get()?.root());
        run.limit(Duration::from_secs(900)).show_output().check()?;
    }
    Ok(())
}
