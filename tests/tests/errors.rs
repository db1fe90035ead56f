//! Every mistake that an application can make, and what the verbs return for it.
//!
//! `tests/errors` makes one mistake per run and prints the result; the table here has the expected
//! result: the errno of a verb, or completion statuses, QP states and async events.

use anyhow::{Context, Result, ensure};
use system_tests::daemon::Daemon;
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need, alone};
use system_tests::native;
use system_tests::place::{Host, Node, Place};

/// A mistake and its consequence; `|` separates consequences each of which is right.
type Row = (&'static str, &'static str);

/// Refused by `ibv_post_send` and `ibv_post_recv`, or flushed.
const POSTING: [Row; 15] = [
    ("send_in_reset", "EINVAL"),
    ("send_in_init", "EINVAL"),
    ("send_in_rtr", "EINVAL"),
    ("recv_in_reset", "EINVAL"),
    ("recv_in_init", "OK"),
    ("send_queue_full", "ENOMEM at the first too many"),
    ("recv_queue_full", "ENOMEM"),
    ("too_many_sges", "EINVAL"),
    ("too_many_recv_sges", "EINVAL"),
    ("negative_sges", "EINVAL"),
    ("inline_too_long", "EINVAL"),
    ("inline_read", "EINVAL"),
    ("no_such_opcode", "EINVAL"),
    ("bad_in_a_list", "EINVAL at 1, 1 completed"),
    ("flushed_in_error", "OK, send WR_FLUSH_ERR, receive WR_FLUSH_ERR"),
];

/// Refused when objects are made, registered or destroyed.
const CREATING: [Row; 30] = [
    ("qp_too_many_send_wr", "EINVAL"),
    ("qp_too_many_recv_wr", "EINVAL"),
    ("qp_too_many_send_sge", "EINVAL"),
    ("qp_too_many_recv_sge", "EINVAL"),
    ("qp_too_much_inline", "EINVAL"),
    ("qp_without_cq", "EINVAL"),
    ("qp_of_no_type", "EINVAL | EOPNOTSUPP"),
    ("cq_of_zero", "EINVAL"),
    ("cq_negative", "EINVAL"),
    ("cq_too_large", "EINVAL"),
    ("cq_bad_vector", "EINVAL"),
    ("cq_shrunk_below_content", "EINVAL"),
    ("mr_remote_write_only", "EINVAL"),
    ("mr_remote_atomic_only", "EINVAL"),
    ("mr_empty", "OK"),
    ("mr_wraps", "EINVAL | EFAULT"),
    ("mr_unmapped", "EFAULT"),
    ("mr_unmapped_in_the_middle", "EFAULT"),
    ("mr_read_only_memory", "EFAULT"),
    ("busy_cq", "EBUSY"),
    ("busy_pd", "EBUSY"),
    ("srq_too_many_wr", "EINVAL"),
    ("srq_too_many_sge", "EINVAL"),
    ("srq_limit_too_high", "EINVAL"),
    ("srq_resized", "EOPNOTSUPP"),
    ("busy_srq", "EBUSY"),
    ("recv_beside_srq", "EINVAL"),
    ("ah_not_global", "EINVAL"),
    ("ah_bad_port", "EINVAL"),
    ("ah_bad_gid_index", "EINVAL"),
];

/// Refused by `ibv_modify_qp`; the state stays.
const MODIFYING: [Row; 27] = [
    ("reset_to_rtr", "EINVAL"),
    ("reset_to_rts", "EINVAL"),
    ("reset_to_error", "EINVAL"),
    ("init_to_rts", "EINVAL"),
    ("rts_to_init", "EINVAL"),
    ("rts_to_rtr", "EINVAL"),
    ("no_such_state", "EINVAL"),
    ("init_without_port", "EINVAL"),
    ("rtr_without_address", "EINVAL"),
    ("rtr_without_psn", "EINVAL"),
    ("rtr_with_timeout", "EINVAL"),
    ("rts_without_retry_count", "EINVAL"),
    ("rts_with_path_mtu", "EINVAL"),
    ("init_bad_port", "EINVAL"),
    ("init_bad_pkey_index", "EINVAL"),
    ("rtr_bad_mtu", "EINVAL"),
    ("rtr_bad_gid_index", "EINVAL"),
    ("rtr_not_global", "EINVAL"),
    ("rtr_bad_rnr_timer", "EINVAL"),
    ("rtr_too_many_atomics", "EINVAL"),
    ("rts_bad_timeout", "EINVAL"),
    ("rts_bad_retry_count", "EINVAL"),
    ("rts_bad_rnr_retry", "EINVAL"),
    ("rts_too_many_atomics", "EINVAL"),
    ("wrong_current_state", "EINVAL"),
    ("any_to_reset", "OK"),
    ("any_to_error", "OK"),
];

const FINE: &str = "send SUCCESS, receive none, states RTS RTS, events none";
/// The requester's own memory: nothing reaches the peer.
const LOCAL: &str = "send LOC_PROT_ERR, receive none, states ERR RTS, events none";
/// The peer's memory, refused before a byte of it is touched.
const REMOTE: &str = "send REM_ACCESS_ERR, receive none, states ERR ERR, events QP_ACCESS_ERR";
/// The peer's memory is gone under a good key.
const MISSING: &str = "send REM_OP_ERR, receive none, states ERR ERR, events QP_FATAL";
/// Refused by the peer as not allowed to this QP.
const FORBIDDEN: &str = "send REM_INV_REQ_ERR, receive none, states ERR ERR, events QP_REQ_ERR";
/// The receiver's own memory.
const RECEIVER: &str = "send REM_OP_ERR, receive LOC_PROT_ERR, states ERR ERR, events none";
const TOO_LONG: &str = "send REM_INV_REQ_ERR, receive LOC_LEN_ERR, states ERR ERR, events none";
const NOT_READY: &str = "send RNR_RETRY_EXC_ERR, receive none, states ERR RTS, events none";

/// Found while the request is executed.
const WIRE: [Row; 38] = [
    ("no_mistake", FINE),
    ("lkey_random", LOCAL),
    ("lkey_zero", LOCAL),
    ("lkey_of_another_pd", LOCAL),
    ("lkey_deregistered", LOCAL),
    ("lkey_behind_the_end", LOCAL),
    ("lkey_before_the_start", LOCAL),
    ("lkey_wraps", LOCAL),
    ("lkey_small_send", LOCAL),
    ("lkey_memory_gone", LOCAL),
    ("read_into_read_only", LOCAL),
    ("read_into_memory_gone", LOCAL),
    ("misaligned_atomic", FORBIDDEN),
    ("short_atomic", "send LOC_LEN_ERR, receive none, states ERR RTS, events none"),
    ("atomic_into_read_only", LOCAL),
    ("rkey_random", REMOTE),
    ("rkey_zero", REMOTE),
    ("rkey_of_another_pd", REMOTE),
    ("rkey_deregistered", REMOTE),
    ("rkey_behind_the_end", REMOTE),
    ("rkey_before_the_start", REMOTE),
    ("rkey_wraps", REMOTE),
    ("read_behind_the_end", REMOTE),
    ("write_without_right", REMOTE),
    ("write_to_local_memory", REMOTE),
    ("read_without_right", REMOTE),
    ("atomic_without_right", REMOTE),
    ("write_to_memory_gone", MISSING),
    ("read_from_memory_gone", MISSING),
    (
        "write_imm_bad_rkey",
        "send REM_ACCESS_ERR, receive LOC_ACCESS_ERR, states ERR ERR, events none",
    ),
    ("nothing_with_bad_rkey", FINE),
    ("send_too_long", TOO_LONG),
    ("long_send_too_long", TOO_LONG),
    ("receive_key_random", RECEIVER),
    ("receive_key_of_another_pd", RECEIVER),
    ("receive_into_read_only", RECEIVER),
    ("receive_into_deregistered", RECEIVER),
    ("receive_into_memory_gone", RECEIVER),
];

/// Between the two ends.
const BREAKING: [Row; 13] = [
    ("qp_without_write", FORBIDDEN),
    ("qp_without_read", FORBIDDEN),
    ("qp_without_atomic", FORBIDDEN),
    ("responder_takes_no_read", FORBIDDEN),
    ("requester_may_not_read", "send LOC_QP_OP_ERR, receive none, states ERR RTS, events none"),
    ("send_without_receive", NOT_READY),
    ("write_imm_without_receive", NOT_READY),
    ("peer_in_error", "send RETRY_EXC_ERR, receive none, states ERR ERR, events none"),
    ("peer_in_reset", "send RETRY_EXC_ERR, receive none, states ERR RESET, events none"),
    ("peer_does_not_exist", "send RETRY_EXC_ERR, receive none, states ERR RTS, events none"),
    ("flushed_behind_an_error", "REM_ACCESS_ERR WR_FLUSH_ERR WR_FLUSH_ERR"),
    ("cq_overflow", "events CQ_ERR QP_FATAL"),
    ("keys_are_not_used_again", "0 of 299 registrations had the first one's key"),
];

/// Unusual but correct use.
const USING: [Row; 10] = [
    ("armed_in_a_walk", "OK"),
    ("reset_and_destroyed_in_a_walk", "OK OK, then ENOENT"),
    ("posted_again_in_a_walk", "1000 completed, events none"),
    ("receive_after_an_unseen_error", "REM_ACCESS_ERR, WR_FLUSH_ERR"),
    ("errno_of_refusals", "EINVAL EINVAL"),
    ("garbled_handles", "ENOENT ENOENT ENOENT ENOENT ENOENT"),
    ("descriptors_closed", "WR_FLUSH_ERR"),
    ("descriptors_taken", "flushed, 0 files written to, 0 closed"),
    ("few_system_calls", "200 messages"),
    ("used_at_the_end", "SUCCESS"),
];

/// Device memory, and memory on demand.
const MEMORY: [Row; 17] = [
    ("dm_too_large", "ENOMEM"),
    ("dm_of_nothing", "EINVAL"),
    ("dm_copied_beyond_the_end", "EINVAL EINVAL"),
    ("dm_not_zero_based", "EINVAL"),
    ("dm_on_demand", "EINVAL"),
    ("dm_registered_beyond_the_end", "EINVAL"),
    ("busy_dm", "EBUSY, then OK"),
    ("dm_does_all_operations", "SUCCESS SUCCESS SUCCESS: 12 5 12"),
    ("dm_without_right", "REM_ACCESS_ERR"),
    ("dm_behind_its_region", "REM_ACCESS_ERR"),
    ("implicit_without_on_demand", "EINVAL | EFAULT"),
    ("implicit_not_from_zero", "EINVAL"),
    ("implicit_reaches_what_comes_later", FINE),
    ("implicit_hole_at_the_responder", MISSING),
    ("implicit_hole_at_the_requester", LOCAL),
    ("on_demand_pages_gone", LOCAL),
    (
        "advice",
        "OK, beyond EFAULT, read-only EFAULT, not on demand EFAULT, other domain EFAULT, \
         other advice EOPNOTSUPP, flags EINVAL",
    ),
];

fn stage(test: &str) -> Result<Option<(Lab, Node)>> {
    let Some(mut lab) = Lab::open(test, Need::Root, &[])? else { return Ok(None) };
    lab.tools = lab.tools.clone().with_built(native::errors()?);
    let daemon = Daemon::start(Dist::get()?, &alone())?;
    let host = Host::here(std::net::Ipv4Addr::LOCALHOST.into(), &lab.tools);
    Ok(Some((lab, Node::new(daemon, host, Dist::get()?))))
}

fn walk(test: &str, table: &[Row]) -> Result<()> {
    let Some((_lab, node)) = stage(test)? else { return Ok(()) };
    let mut wrong = Vec::new();
    for (mistake, consequence) in table {
        let gid = node.gid_index().to_string();
        let cmd = node.cmd(native::ERRORS)?.args(["-d", node.device(), "-g", &gid, mistake]);
        let output = cmd.run()?;
        let said = output.stdout.trim();
        if !output.success() || !consequence.split(" | ").any(|right| right == said) {
            let stderr = output.stderr.trim();
            wrong.push(format!("{mistake}: {said:?} {stderr} instead of {consequence:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    node.stop()?;
    Ok(())
}

#[test]
fn posting() -> Result<()> {
    walk("posting", &POSTING)
}

#[test]
fn creating() -> Result<()> {
    walk("creating", &CREATING)
}

#[test]
fn modifying() -> Result<()> {
    walk("modifying", &MODIFYING)
}

#[test]
fn on_the_wire() -> Result<()> {
    walk("on_the_wire", &WIRE)
}

#[test]
fn between_the_ends() -> Result<()> {
    walk("between_the_ends", &BREAKING)
}

#[test]
fn unusual_use() -> Result<()> {
    walk("unusual_use", &USING)
}

#[test]
fn kinds_of_memory() -> Result<()> {
    walk("kinds_of_memory", &MEMORY)
}

#[test]
fn every_mistake_has_its_row() -> Result<()> {
    let Some((_lab, node)) = stage("every_mistake_has_its_row")? else { return Ok(()) };
    let list = node.cmd(native::ERRORS)?.arg("list").check()?;
    let mut known: Vec<_> = list.lines().collect();
    let tables: [&[Row]; 7] = [&POSTING, &CREATING, &MODIFYING, &WIRE, &BREAKING, &USING, &MEMORY];
    let mut rows: Vec<_> = tables.concat().into_iter().map(|(mistake, _)| mistake).collect();
    known.sort_unstable();
    rows.sort_unstable();
    ensure!(known == rows, "program: {known:?}\ntable: {rows:?}");
    node.stop().context("the daemon after all these mistakes")?;
    Ok(())
}
