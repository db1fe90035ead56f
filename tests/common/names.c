/* Names of what the verbs return, as the tests write them. */
#include "rc.h"
#include <errno.h>

#define NAME(prefix, name) [prefix##name] = #name
#define COUNT(table) (sizeof(table) / sizeof *(table))

static const char *lookup(const char *const *table, size_t count, unsigned number)
{
	static char unknown[16];

	if (number < count && table[number])
		return table[number];
	snprintf(unknown, sizeof unknown, "%u", number);
	return unknown;
}

const char *wc_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		NAME(IBV_WC_, SUCCESS), NAME(IBV_WC_, LOC_LEN_ERR), NAME(IBV_WC_, LOC_QP_OP_ERR),
		NAME(IBV_WC_, LOC_PROT_ERR), NAME(IBV_WC_, WR_FLUSH_ERR), NAME(IBV_WC_, MW_BIND_ERR),
		NAME(IBV_WC_, BAD_RESP_ERR), NAME(IBV_WC_, LOC_ACCESS_ERR), NAME(IBV_WC_, REM_INV_REQ_ERR),
		NAME(IBV_WC_, REM_ACCESS_ERR), NAME(IBV_WC_, REM_OP_ERR), NAME(IBV_WC_, RETRY_EXC_ERR),
		NAME(IBV_WC_, RNR_RETRY_EXC_ERR), NAME(IBV_WC_, REM_ABORT_ERR), NAME(IBV_WC_, FATAL_ERR),
		NAME(IBV_WC_, GENERAL_ERR) };

	return lookup(names, COUNT(names), status);
}

const char *event_name(enum ibv_event_type event)
{
	static const char *const names[] = {
		NAME(IBV_EVENT_, CQ_ERR), NAME(IBV_EVENT_, QP_FATAL), NAME(IBV_EVENT_, QP_REQ_ERR),
		NAME(IBV_EVENT_, QP_ACCESS_ERR), NAME(IBV_EVENT_, COMM_EST), NAME(IBV_EVENT_, SQ_DRAINED),
		NAME(IBV_EVENT_, DEVICE_FATAL), NAME(IBV_EVENT_, PORT_ACTIVE), NAME(IBV_EVENT_, PORT_ERR),
		NAME(IBV_EVENT_, SRQ_ERR), NAME(IBV_EVENT_, SRQ_LIMIT_REACHED),
		NAME(IBV_EVENT_, QP_LAST_WQE_REACHED), NAME(IBV_EVENT_, GID_CHANGE) };

	return lookup(names, COUNT(names), event);
}

const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = {
		NAME(IBV_QPS_, RESET), NAME(IBV_QPS_, INIT), NAME(IBV_QPS_, RTR), NAME(IBV_QPS_, RTS),
		NAME(IBV_QPS_, SQD), NAME(IBV_QPS_, SQE), NAME(IBV_QPS_, ERR) };

	return lookup(names, COUNT(names), state);
}

const char *error_name(int err)
{
	static const char *const names[] = {
		[0] = "OK", NAME(, EINVAL), NAME(, ENOMEM), NAME(, EBUSY), NAME(, EFAULT), NAME(, EPERM),
		NAME(, EOPNOTSUPP), NAME(, ENOENT), NAME(, ENODEV), NAME(, ETIMEDOUT), NAME(, EHOSTUNREACH),
		NAME(, EIO), NAME(, EAGAIN), NAME(, ENOSPC), NAME(, ENETUNREACH), NAME(, EOVERFLOW), NAME(, EMSGSIZE) };

	return lookup(names, COUNT(names), (unsigned)err);
}
