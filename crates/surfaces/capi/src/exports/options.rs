//! Options of an endpoint, opening and closing.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use weft_message::{Messages, Options};
use weft_open::{Opening, ServicePlace};

use crate::call::call;
use crate::objects::{ENDPOINTS, EndpointObject, Entry, OPTIONS, OptionsObject};
use crate::pointers::{self, Out};
use crate::status::Failure;
use crate::types::weft_status::WEFT_OK;
use crate::types::{weft_endpoint, weft_options};

/// The name of a service that stands for none: there is none.
const NO_USUAL_NAME: &str = "";

/// Makes options, all with their defaults. End them by weft_options_free.
///
/// Any thread. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_LIMIT.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_new(options: *mut *mut weft_options) -> c_int {
    call(|| {
        let options = Out::needed(options, "options")?;
        options.set(pointers::to_handle(OPTIONS.insert(OptionsObject::default())?));
        Ok(WEFT_OK)
    })
}

/// Ends options. Endpoints that were opened with them stay.
///
/// One thread at a time. Errors: WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_free(options: *mut weft_options) -> c_int {
    call(|| OPTIONS.remove(pointers::handle(options)).map(|_| WEFT_OK))
}

fn set(
    options: *mut weft_options,
    change: impl FnOnce(&mut OptionsObject) -> Result<(), Failure>,
) -> c_int {
    call(|| OPTIONS.alone(pointers::handle(options), change).map(|()| WEFT_OK))
}

/// The name under which `weft status` lists the endpoint. Default: that of the program.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_name(options: *mut weft_options, name: *const c_char) -> c_int {
    set(options, |options| {
        options.name = Some(pointers::text(name, "name")?.to_owned());
        Ok(())
    })
}

/// The socket of the node daemon. Default: WEFT_SOCKET, else the daemon of the system or of the
/// user.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_daemon(
    options: *mut weft_options,
    socket: *const c_char,
) -> c_int {
    set(options, |options| {
        options.socket = Some(pointers::text(socket, "socket")?.to_owned());
        Ok(())
    })
}

/// Whether a node daemon is started when none answers, as `weft run` does. Default: 1.
///
/// One thread at a time. Errors: WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_start_daemon(
    options: *mut weft_options,
    is_wanted: c_int,
) -> c_int {
    set(options, |options| {
        options.starts_no_daemon = is_wanted == 0;
        Ok(())
    })
}

/// As a service: clients find the endpoint by this name, of 1 to 48 of the characters a-z, A-Z,
/// 0-9, '.', '_' and '-'. The option daemon.services of weft says which other users may come in. It
/// has a partition of its own: it meets its clients, and none of the user's other endpoints.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_offer(options: *mut weft_options, name: *const c_char) -> c_int {
    set(options, |options| {
        let name = pointers::text(name, "name")?;
        let _ = Opening::with("", &Default::default()).offering(name)?;
        options.entry = Entry::Offers(name.to_owned());
        Ok(())
    })
}

/// As a client of a service: NAME, NAME@HOST (a host's name, number or address in the fabric), or
/// NODE:NUMBER, the address of the service. weft_service_address tells it when the endpoint is
/// open.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_service(
    options: *mut weft_options,
    place: *const c_char,
) -> c_int {
    set(options, |options| {
        let place = pointers::text(place, "place")?;
        ServicePlace::parse(place, NO_USUAL_NAME)?;
        options.entry = Entry::Finds(place.to_owned());
        Ok(())
    })
}

/// The provider of libfabric for peers of other hosts, as `weft info` lists them. Default: the
/// first that serves hosts.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_provider(
    options: *mut weft_options,
    provider: *const c_char,
) -> c_int {
    set(options, |options| {
        options.provider = Some(pointers::text(provider, "provider")?.to_owned());
        Ok(())
    })
}

/// How many peers may be alive at a time. Default: 256. weft_limits tells what it became.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_options_set_peers(options: *mut weft_options, peers: u32) -> c_int {
    set(options, |options| {
        if peers == 0 {
            return Err(Failure::argument("an endpoint has one peer at least"));
        }
        options.peers = usize::try_from(peers).ok();
        Ok(())
    })
}

/// Opens an endpoint. It reaches peers of its host through shared memory, and those of joined hosts
/// through libfabric, which is loaded when the first is wanted. options may be NULL. Variables
/// WEFT_* of the environment count as for the command `weft`. End it by weft_close.
///
/// Threads that weft starts get no signals. A child of fork has none of its parent's endpoints; it
/// opens its own.
///
/// Any thread; the endpoint is for one thread at a time. It may take seconds where a daemon has to
/// be started. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_NO_DAEMON,
/// WEFT_ERROR_NOT_FOUND, WEFT_ERROR_PERMISSION, WEFT_ERROR_IN_USE, WEFT_ERROR_LIMIT,
/// WEFT_ERROR_SYSTEM.
#[unsafe(no_mangle)]
pub extern "C" fn weft_open(
    options: *const weft_options,
    endpoint: *mut *mut weft_endpoint,
) -> c_int {
    call(|| {
        let endpoint = Out::needed(endpoint, "endpoint")?;
        let wishes = match options.is_null() {
            true => OptionsObject::default(),
            false => OPTIONS.shared(pointers::handle(options), |options| Ok(options.clone()))?,
        };
        let opened = opening(&wishes)?.open()?;
        let messages = Messages::new(opened, Options::default());
        let handle = ENDPOINTS.insert(Mutex::new(EndpointObject::new(messages)))?;
        endpoint.set(pointers::to_handle(handle));
        Ok(WEFT_OK)
    })
}

/// Closes an endpoint. Its peers are told that it has ended; its keys are void, and its memories
/// are left to weft_memory_free. What was pending has no completion: take those that matter before.
///
/// One thread at a time. Errors: WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_close(endpoint: *mut weft_endpoint) -> c_int {
    call(|| {
        drop(ENDPOINTS.remove(pointers::handle(endpoint))?);
        Ok(WEFT_OK)
    })
}

/// The opening that a program wishes.
fn opening(wishes: &OptionsObject) -> Result<Opening, Failure> {
    let name = wishes.name.clone().unwrap_or_else(own_name);
    let mut opening = Opening::named(&name)?.without_signals();
    if let Some(socket) = &wishes.socket {
        opening = opening.at(Path::new(socket));
    }
    if !wishes.starts_no_daemon {
        opening = opening.starting_daemon_by(&weft_command());
    }
    if let Some(peers) = wishes.peers {
        opening = opening.peers(peers);
    }
    opening = opening.provider(wishes.provider.as_deref());
    Ok(match &wishes.entry {
        Entry::OfUser => opening,
        Entry::Offers(name) => opening.offering(name)?,
        Entry::Finds(place) => opening.finding(&ServicePlace::parse(place, NO_USUAL_NAME)?)?,
    })
}

fn own_name() -> String {
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The command that starts a daemon: the one that was built or installed with this library, else
/// the one on the PATH.
fn weft_command() -> PathBuf {
    let beside = |file: PathBuf| {
        let directory = file.parent()?.to_owned();
        let places = ["weft", "../weft", "../bin/weft", "../../bin/weft"];
        places.iter().map(|place| directory.join(place)).find(|path| path.is_file())
    };
    pointers::own_file().and_then(beside).unwrap_or_else(|| PathBuf::from("weft"))
}
