//! The way to a device: to its daemon, or to an engine in this very process.
//!
//! The libraries of programs know nothing of engines. Where `RNIC_ENGINE=program` asks for one in
//! the program, they load `librnic_function.so`, which lies beside them, and get from it a
//! connection that looks like one to the daemon, and the way to [drive](super::driving) the engine.
//! With `auto` it is the daemon's engine that serves a program which cannot have one.

use super::Connection;
use super::driving::{self, Driving, Resting, Turned};
use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What `rnic_function_connect` of the library is: path of the daemon's socket, room for a text
/// that says what is wrong, and whether the program then has the daemon's engine: a later call says
/// the same, so that all libraries of the program go to one engine. Returns a descriptor, or a
/// negative error number.
pub type Connect = unsafe extern "C" fn(*const u8, usize, *mut u8, usize, bool) -> c_int;

/// Its name.
pub const CONNECT: &CStr = c"rnic_function_connect";
/// Room for the text.
pub const TEXT: usize = 512;

/// The library, once it is loaded.
struct Library {
    connect: Connect,
    find: driving::Find,
    turn: driving::Turn,
    rest: driving::Rest,
    release: driving::Release,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// A way to the device, and where its engine is.
#[derive(Debug)]
pub struct Connected {
    /// The way.
    pub connection: Connection,
    /// The engine is in this program.
    pub in_program: bool,
    /// Why it is not, where it could have been.
    pub why_not: Option<io::Error>,
}

/// Connects to the engine that this program is to use, at the daemon with this socket.
///
/// # Errors
/// As [`Connection::connect`]; when there must be an engine in this program and is none, what keeps
/// it from that.
pub fn connect(socket: &Path) -> io::Result<Connected> {
    let engine = Engine::wanted()?;
    let with_daemon = |why_not| -> io::Result<Connected> {
        let connection = Connection::connect(socket)?;
        Ok(Connected { connection, in_program: false, why_not })
    };
    if engine == Engine::Daemon {
        return with_daemon(None);
    }
    match connect_in_program(socket, engine == Engine::Either) {
        Ok(connection) => Ok(Connected { connection, in_program: true, why_not: None }),
        Err(why) if engine == Engine::Either => with_daemon(Some(why)),
        Err(why) => Err(why),
    }
}

fn connect_in_program(socket: &Path, or_daemon: bool) -> io::Result<Connection> {
    let library = match LIBRARY.get() {
        Some(library) => library,
        None => LIBRARY.get_or_init({
            let found = load()?;
            move || found
        }),
    };
    let (path, mut text) = (socket.as_os_str().as_bytes(), [0u8; TEXT]);
    // SAFETY: both name live memory of that length.
    let result = unsafe {
        (library.connect)(path.as_ptr(), path.len(), text.as_mut_ptr(), text.len(), or_daemon)
    };
    if result >= 0 {
        // SAFETY: the library has opened it for its caller.
        return Ok(Connection::from(unsafe { OwnedFd::from_raw_fd(result) }));
    }
    let said = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    let kind = io::Error::from_raw_os_error(-result).kind();
    match said.is_empty() {
        true => Err(io::Error::from_raw_os_error(-result)),
        false => Err(io::Error::new(kind, said.to_string_lossy())),
    }
}

/// The program's way to drive an engine.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    driving: &'static Driving,
    turn: driving::Turn,
    rest: driving::Rest,
    release: driving::Release,
}

impl Driver {
    /// Of the function that this program has at the daemon with this socket, after it has
    /// [connected](connect) to it. None where `RNIC_DRIVE=off` says so.
    pub fn of(socket: &Path) -> Option<Self> {
        let library = LIBRARY.get()?;
        if env::var_os("RNIC_DRIVE").is_some_and(|value| value == "off") {
            return None;
        }
        let path = socket.as_os_str().as_bytes();
        // SAFETY: names live memory of that length; what the library returns is never freed.
        let driving = unsafe { (library.find)(path.as_ptr(), path.len()).as_ref()? };
        let Library { turn, rest, release, .. } = *library;
        Some(Self { driving, turn, rest, release })
    }

    /// What is agreed on.
    #[inline]
    pub fn driving(&self) -> &'static Driving {
        self.driving
    }

    /// Does what the state calls for.
    pub fn turn(&self) -> Turned {
        // SAFETY: from the same library.
        Turned::from_code(unsafe { (self.turn)(self.driving) })
    }

    /// Makes a turn for a thread that is to sleep where there is nothing to do, and says on what.
    pub fn rest(&self, resting: &mut Resting) -> Turned {
        // SAFETY: from the same library, which writes nothing else.
        Turned::from_code(unsafe { (self.rest)(self.driving, resting) })
    }

    /// Closes what the program has of the function's descriptors.
    pub fn release(&self) {
        // SAFETY: from the same library.
        unsafe { (self.release)(self.driving) };
    }
}

/// Where the engine of a program is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// In the daemon, or in an engine process that it has started.
    Daemon,
    /// In the program.
    Program,
    /// In the program where the daemon lets it have one, else in the daemon.
    Either,
}

impl Engine {
    /// What `RNIC_ENGINE` says.
    ///
    /// # Errors
    /// When it says nothing of that.
    pub fn wanted() -> io::Result<Self> {
        // SAFETY: only asks about this process and touches no memory.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
        // A setuid program must not be led to load anything by its caller.
        let value = if secure { None } else { env::var_os("RNIC_ENGINE") };
        match value.as_deref().map(OsStr::as_bytes) {
            None | Some(b"" | b"daemon") => Ok(Self::Daemon),
            Some(b"program") => Ok(Self::Program),
            Some(b"auto") => Ok(Self::Either),
            Some(other) => {
                let other = String::from_utf8_lossy(other);
                let text = format!("RNIC_ENGINE={other}: it is daemon, program or auto");
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
        }
    }
}

fn load() -> io::Result<Library> {
    let path = beside_this()?.join("librnic_function.so");
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: our own library, whose initialisation touches nothing of the program. It stays.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
    let symbol = |name: &CStr| {
        let found = match library.is_null() {
            true => std::ptr::null_mut(),
            // SAFETY: a library that is open, and a name with its end.
            false => unsafe { libc::dlsym(library, name.as_ptr()) },
        };
        if found.is_null() { Err(why_not_loaded()) } else { Ok(found) }
    };
    let (connect, find) = (symbol(CONNECT)?, symbol(driving::FIND)?);
    let (turn, rest) = (symbol(driving::TURN)?, symbol(driving::REST)?);
    let release = symbol(driving::RELEASE)?;
    // SAFETY: functions of these types, by the names that only our library has.
    unsafe {
        Ok(Library {
            connect: std::mem::transmute::<*mut c_void, Connect>(connect),
            find: std::mem::transmute::<*mut c_void, driving::Find>(find),
            turn: std::mem::transmute::<*mut c_void, driving::Turn>(turn),
            rest: std::mem::transmute::<*mut c_void, driving::Rest>(rest),
            release: std::mem::transmute::<*mut c_void, driving::Release>(release),
        })
    }
}

/// What the last call of the loader says.
fn why_not_loaded() -> io::Error {
    // SAFETY: the text lives until the next call of the loader in this thread.
    let why = unsafe {
        let why = libc::dlerror();
        if why.is_null() { c"no reason" } else { CStr::from_ptr(why) }.to_string_lossy()
    };
    io::Error::new(io::ErrorKind::NotFound, format!("no engine: {why}"))
}

/// The folder of the library that this code is in.
fn beside_this() -> io::Result<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: it is written where the call succeeds, and all-zero bytes are valid, too.
    let name = unsafe {
        libc::dladdr(beside_this as *const c_void, info.as_mut_ptr());
        let name: *const c_char = info.assume_init().dli_fname;
        if name.is_null() { c"" } else { CStr::from_ptr(name) }
    };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let path = path.canonicalize().map_err(|error| {
        let text = format!(
            "librnic_function.so is to be beside {}: {error}; give LD_LIBRARY_PATH a whole path",
            path.display()
        );
        io::Error::new(error.kind(), text)
    })?;
    path.parent().map(Path::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
}
