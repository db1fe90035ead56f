use super::*;
use rnic_host::quota::Resource;

fn args(words: &[&str]) -> Args {
    Args::try_parse_from(std::iter::once("rnicd").chain(words.iter().copied())).unwrap()
}

fn error(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().copied().chain(["--socket", "/tmp/x.sock"]).collect();
    format!("{:#}", Config::resolve(args(&words)).unwrap_err())
}

#[test]
fn the_command_line_of_the_documentation_is_understood() {
    let config = Config::resolve(args(&[
        "--device",
        "nic7",
        "--io",
        "udp",
        "--xdp-mode",
        "zero-copy",
        "--address",
        "127.0.0.1",
        "--address",
        "::1",
        "--socket",
        "/tmp/x.sock",
        "--mode",
        "0660",
        "--busy-poll",
        "--profile",
        "connectx",
    ]))
    .unwrap();
    assert_eq!(config.device, "nic7");
    assert_eq!((config.io, config.xdp_mode), (Io::Udp, XdpMode::ZeroCopy));
    assert_eq!(config.addresses.len(), 2);
    assert_eq!((config.mode, config.engine.idle), (0o660, Idle::Busy));
    assert_eq!(config.profile, Profile::ConnectX);
}

#[test]
fn the_command_line_wins_over_the_file() {
    let path = std::env::temp_dir().join(format!("rnicd-config-{}.toml", std::process::id()));
    let text = "device = 'a'\nio = 'udp'\nspin = 7\nprofile = 'connectx'\nsocket = '/s'\n[quota]\nqps = 3\ngroups = 2\n\
                [total]\nring-bytes = 1048576\n";
    std::fs::write(&path, text).unwrap();
    let name = path.to_str().unwrap().to_owned();
    let config = Config::resolve(args(&["--config", &name, "--device", "b"])).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(config.device, "b");
    assert_eq!((config.io, config.engine.spin), (Io::Udp, Duration::from_micros(7)));
    assert_eq!(config.profile, Profile::ConnectX);
    let usual = Limits::new(&Section::new(), &Section::new(), &Machine::look());
    assert_eq!((config.limits.user[Resource::Qps], config.groups), (3, 2));
    assert_eq!(config.limits.user[Resource::Cqs], usual.user[Resource::Cqs]);
    assert_eq!(config.limits.all[Resource::RingBytes], 1 << 20);
    assert_eq!(config.socket, PathBuf::from("/s"));
}

/// For root the default excludes no user, and for others it admits none.
#[test]
fn a_group_alone_is_who_may_use_the_socket() {
    let mode = |words: &[&str]| {
        let words: Vec<_> = words.iter().copied().chain(["--socket", "/tmp/x.sock"]).collect();
        Config::resolve(args(&words)).unwrap().mode
    };
    let usual = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    assert_eq!(mode(&[]), usual);
    assert_eq!(mode(&["--group", "rdma"]), 0o660);
    assert_eq!(mode(&["--group", "rdma", "--mode", "0600"]), 0o600);
}

#[test]
fn errors_say_what_to_do() {
    assert!(error(&["--io", "af-xdp"]).contains("--netdev"));
    assert!(error(&["--device", "a b"]).contains("letters, digits"));
    assert!(error(&["--mode", "999"]).contains("0660"));
    for name in ["", ".", "..", ".rnic0", "a/b", "rnic0:1", "rnic\u{e9}"] {
        assert!(error(&["--device", name]).contains("letters, digits"), "{name}");
    }
    assert!(error(&["--address", "0.0.0.0"]).contains("unicast"));
    assert!(error(&["--config", "/nonexistent.toml"]).contains("/nonexistent.toml"));
}

/// A daemon that runs keeps what it has.
#[test]
fn only_a_start_without_its_file_is_told_of_the_defaults() {
    let args = args(&["--config", "/nonexistent.toml", "--socket", "/tmp/x.sock"]);
    let start = Config::resolve(args.clone()).unwrap_err().to_string();
    let again = Config::resolve_again(args).unwrap_err().to_string();
    assert_eq!(start, again + "; without --config the defaults apply");
}

/// As the service does it: `RNICD_OPTIONS` come behind the options of its own.
#[test]
fn an_option_that_is_given_again_replaces_the_first() {
    let words = ["--netdev", "eth0.100", "--device", "rnic_eth0.100", "--socket", "/tmp/x.sock"];
    let config = Config::resolve(args(&words)).unwrap();
    assert_eq!(config.device, "rnic_eth0.100");
    let again = ["--device", "mlx5_0", "--address", "::1", "--address", "127.0.0.1"];
    let config = Config::resolve(args(&[&words[..], &again].concat())).unwrap();
    assert_eq!((&*config.device, config.addresses.len()), ("mlx5_0", 2));
}

#[test]
fn a_key_that_does_not_exist_is_an_error() {
    let path = std::env::temp_dir().join(format!("rnicd-badkey-{}.toml", std::process::id()));
    for (text, key) in
        [("devcie = 'a'\n", "devcie"), ("[quota]\nqpz = 1\n", "qpz"), ("[total]\nqpy = 1\n", "qpy")]
    {
        std::fs::write(&path, text).unwrap();
        let error = error(&["--config", path.to_str().unwrap()]);
        assert!(error.contains(key), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let resolve = |words: &[&str]| {
        let words: Vec<_> = words.iter().copied().chain(["--socket", "/tmp/x.sock"]).collect();
        Config::resolve(args(&words)).unwrap()
    };
    let old = resolve(&["--log", "info"]);
    let new = resolve(&["--log", "debug", "--metrics", "127.0.0.1:9879", "--mode", "0600"]);
    assert!(old.fixed_keys(&new).is_empty());
    let new = resolve(&["--device", "b", "--spin", "7", "--group", "g", "--address", "::1"]);
    assert_eq!(old.fixed_keys(&new), ["device", "address", "group", "spin"]);
}
