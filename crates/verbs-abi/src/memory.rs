//! Protection domains, memory regions, windows, device memory.

use std::ffi::{c_int, c_uint, c_void};

use crate::ibv_context;

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

c_enum! {
    /// Bits of `ibv_parent_domain_init_attr.comp_mask`.
    ibv_parent_domain_init_attr_mask: u32;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2,
}

/// What the application's allocator returns to leave an allocation to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: usize = usize::MAX;

/// Memory of the application's choosing for queues.
pub type ibv_pd_alloc_fn = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void;

/// Gives back what `ibv_pd_alloc_fn` returned.
pub type ibv_pd_free_fn = unsafe extern "C" fn(
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    ptr: *mut c_void,
    resource_type: u64,
);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<ibv_pd_alloc_fn>,
    pub free: Option<ibv_pd_free_fn>,
    pub pd_context: *mut c_void,
}

c_enum! {
    /// What a memory region or queue pair allows.
    ibv_access_flags: u32;
    IBV_ACCESS_LOCAL_WRITE = 1 << 0,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
    IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
}

c_enum! {
    /// What `ibv_rereg_mr` changes.
    ibv_rereg_mr_flags: i32;
    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    IBV_REREG_MR_FLAGS_SUPPORTED = 7,
}

c_enum! {
    /// What `ibv_rereg_mr` returns when it fails, saying what is left of the region.
    ibv_rereg_mr_err_code: i32;
    IBV_REREG_MR_ERR_INPUT = -1,
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
    IBV_REREG_MR_ERR_CMD = -4,
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

c_enum! {
    /// Bits of `ibv_mr_init_attr.comp_mask`.
    ibv_mr_init_attr_mask: u32;
    IBV_REG_MR_MASK_IOVA = 1 << 0,
    IBV_REG_MR_MASK_ADDR = 1 << 1,
    IBV_REG_MR_MASK_FD = 1 << 2,
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
    IBV_REG_MR_MASK_DMAH = 1 << 4,
    IBV_REG_MR_MASK_BUF = 1 << 5,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}

/// A handle of `ibv_alloc_buf`; its content is private to the library.
pub type ibv_buf = c_void;

/// Hints for a device's accesses to host memory.
#[repr(C)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}

c_enum! {
    /// Memory window type.
    ibv_mw_type: u32;
    IBV_MW_TYPE_1 = 1,
    IBV_MW_TYPE_2 = 2,
}

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

c_enum! {
    /// Bits of `ibv_dm.comp_mask`.
    ibv_dm_mask: u32;
    IBV_DM_MASK_HANDLE = 1 << 0,
}

/// Device memory. Programs call the two functions in it directly.
#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const c_void,
            length: usize,
        ) -> c_int,
    >,
    pub memcpy_from_dm: Option<
        unsafe extern "C" fn(
            host_addr: *mut c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> c_int,
    >,
    pub comp_mask: u32,
    pub handle: u32,
}

c_enum! {
    /// Advice of `ibv_advise_mr`.
    ibv_advise_mr_advice: u32;
    IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
}

c_enum! {
    /// Flags of `ibv_advise_mr`.
    ibv_advise_mr_flags: u32;
    IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
}

c_enum! {
    /// What `ibv_is_fork_initialized` answers.
    ibv_fork_status: u32;
    IBV_FORK_DISABLED = 0,
    IBV_FORK_ENABLED = 1,
    IBV_FORK_UNNEEDED = 2,
}
