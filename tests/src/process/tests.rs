use super::*;

#[test]
fn output_and_status_are_kept_apart() {
    let output = Cmd::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).run().unwrap();
    assert_eq!(
        (output.code(), output.stdout.as_str(), output.stderr.as_str()),
        (3, "out\n", "err\n")
    );
}

#[test]
fn a_command_that_hangs_is_killed_with_its_children() {
    let began = Instant::now();
    let hang = Cmd::new("sh").args(["-c", "sleep 60 & echo $!; wait"]);
    let error = hang.limit(Duration::from_millis(200)).run().unwrap_err().to_string();
    assert!(began.elapsed() < Duration::from_secs(5), "{error}");
    let child: u32 = error.lines().last().unwrap().trim().parse().unwrap();
    wait_until("end of the grandchild", Duration::from_secs(2), || Ok(!is_alive(child))).unwrap();
}

#[test]
fn a_failed_check_shows_what_the_program_said() {
    let error = Cmd::new("sh").args(["-c", "echo why >&2; false"]).check().unwrap_err();
    assert!(error.to_string().contains("why"), "{error}");
}

/// A zombie counts as dead: its parent is gone and init reaps it in its own time.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
