/*
 * Runs a program behind a filter of system calls, as containers have it: sandbox PROGRAM ARGS...
 *
 * Without an option no process may reach the memory of another one: the filter refuses
 * process_vm_readv, process_vm_writev and ptrace, to the program and to whatever it starts. The
 * daemon is not in it: it may not reach the program either, which is not dumpable by then for
 * another user's processes. With -t the filter refuses close_range, too: as older ones do, which do
 * not know it. With -c it refuses what Docker's default profile of mid 2026 does to a container
 * without capabilities, on x86-64.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static const unsigned int memory[] = { SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace };

static const unsigned int memory_and_newer[] = {
	SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_close_range,
};

/*
 * Namespaces and mounts, the clock, modules, keys, other processes, and what is rarely used. The
 * profile also refuses calls that no kernel has any more.
 */
static const unsigned int container[] = {
	SYS_chroot, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_mount, SYS_mount_setattr,
	SYS_move_mount, SYS_open_by_handle_at, SYS_open_tree, SYS_pivot_root, SYS_setdomainname,
	SYS_sethostname, SYS_setns, SYS_umount2, SYS_unshare,
	SYS_clock_settime, SYS_settimeofday,
	SYS_delete_module, SYS_finit_module, SYS_init_module,
	SYS_add_key, SYS_keyctl, SYS_request_key,
	SYS_kcmp, SYS_migrate_pages, SYS_move_pages, SYS_pidfd_getfd, SYS_process_madvise,
	SYS_bpf, SYS_fanotify_init, SYS_perf_event_open, SYS_syslog, SYS_userfaultfd,
	SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup,
	SYS_get_mempolicy, SYS_mbind, SYS_set_mempolicy,
	SYS_acct, SYS_ioperm, SYS_iopl, SYS_kexec_file_load, SYS_kexec_load, SYS_quotactl,
	SYS_quotactl_fd, SYS_reboot, SYS_swapoff, SYS_swapon, SYS_sysfs, SYS_uselib, SYS_ustat,
	SYS_vhangup, SYS_lookup_dcookie,
	/* set_mempolicy_home_node and lsm_*, which the headers of Debian 12 do not have all. */
	450, 459, 460, 461,
};

/*
 * What a program may ask of personality: the usual one, that of 32 bits, each of them with kernel
 * versions as 2.6 had them, and which one it has.
 */
static const unsigned int personalities[] = { 0, 0x8, 0x20000, 0x20008, 0xffffffff };

/* removexattrat, the newest system call that the profile knows. */
#define NEWEST 466

#define NAMESPACES                                                                                 \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |             \
	 CLONE_NEWPID | CLONE_NEWNET)

#define LOAD(field)                                                                                \
	((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,                                    \
				      offsetof(struct seccomp_data, field)))
#define SKIP(test, value, yes, no)                                                                 \
	((struct sock_filter)BPF_JUMP(BPF_JMP | (test) | BPF_K, (value), (yes), (no)))
#define RETURN(what) ((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (what)))
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))

static struct sock_filter filter[256];
static unsigned short length;

static void add(struct sock_filter line)
{
	filter[length++] = line;
}

static void refuse(const unsigned int *calls, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		add(SKIP(BPF_JEQ, calls[i], 0, 1));
		add(REFUSE(EPERM));
	}
}

/* What the profile decides by more than the number. */
static void refuse_by_arguments(void)
{
	/* What the profile does not know, the runtime says is not there. */
	add(SKIP(BPF_JGT, NEWEST, 0, 1));
	add(REFUSE(ENOSYS));
	/* The C library then makes its threads by clone. */
	add(SKIP(BPF_JEQ, SYS_clone3, 0, 1));
	add(REFUSE(ENOSYS));
	add(SKIP(BPF_JEQ, SYS_clone, 0, 4));
	add(LOAD(args[0]));
	add(SKIP(BPF_JSET, NAMESPACES, 0, 1));
	add(REFUSE(EPERM));
	add(RETURN(SECCOMP_RET_ALLOW));
	add(SKIP(BPF_JEQ, SYS_personality, 0, 2 * COUNT(personalities) + 2));
	add(LOAD(args[0]));
	for (size_t i = 0; i < COUNT(personalities); i++) {
		add(SKIP(BPF_JEQ, personalities[i], 0, 1));
		add(RETURN(SECCOMP_RET_ALLOW));
	}
	add(REFUSE(EPERM));
	add(SKIP(BPF_JEQ, SYS_socket, 0, 4));
	add(LOAD(args[0]));
	add(SKIP(BPF_JEQ, AF_VSOCK, 1, 0));
	add(SKIP(BPF_JEQ, AF_ALG, 0, 1));
	add(REFUSE(EPERM));
}

/* As the engine of a program would copy where it cannot do so plainly. */
static int reaches_memory(void)
{
	char from = 1, to = 0;
	struct iovec local = { &to, 1 }, remote = { &from, 1 };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) >= 0;
}

int main(int argc, char **argv)
{
	const char *option = argc > 1 && argv[1][0] == '-' ? argv[1] : "";

	add(LOAD(nr));
	if (strcmp(option, "-c") == 0) {
		refuse(container, COUNT(container));
		refuse_by_arguments();
	} else if (strcmp(option, "-t") == 0) {
		refuse(memory_and_newer, COUNT(memory_and_newer));
	} else {
		refuse(memory, COUNT(memory));
	}
	add(RETURN(SECCOMP_RET_ALLOW));

	argv += *option ? 2 : 1;
	if (!argv[0])
		return 2;
	struct sock_fprog program = { length, filter };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("sandbox");
		return 1;
	}
	if (strcmp(option, "-c") != 0 && reaches_memory()) {
		fprintf(stderr, "sandbox: the filter refuses nothing\n");
		return 1;
	}
	execvp(argv[0], argv);
	perror(argv[0]);
	return 127;
}
