//! Memory that peers may reach, and keys to it.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use ::weft_memory::{Memory, SegmentError};
use parking_lot::Mutex;
use weft_fabric::{
    Access, Addressable, Audience, Endpoint, GrantError, HostMemory, LocalRange, Region, RemoteKey,
};

use super::peers::{known_size, unexpected};
use super::{OWN_CONTEXT, ended, limit, peer_of, with};
use crate::call::{call, failed};
use crate::events::address;
use crate::key::Key;
use crate::objects::{AnyRegion, EndpointObject, MEMORIES, MemoryObject};
use crate::pointers::{self, Out};
use crate::status::Failure;
use crate::types::weft_status::{
    WEFT_ERROR_ALIGNMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_SYSTEM, WEFT_OK,
};
use crate::types::{
    WEFT_ANY_PEER, weft_endpoint, weft_key, weft_key_content, weft_memory, weft_memory_kind,
    weft_peer,
};

/// Makes memory of length zeroed bytes, which begins at a page. weft_memory_address tells where it
/// is. Nobody reaches it without a key: weft_memory_grant. End it by weft_memory_free.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT, WEFT_ERROR_LIMIT, WEFT_ERROR_SYSTEM,
/// WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_alloc(
    endpoint: *mut weft_endpoint,
    length: usize,
    memory: *mut *mut weft_memory,
) -> c_int {
    call(|| {
        let memory = Out::needed(memory, "memory")?;
        if isize::try_from(length).is_err() {
            return Err(Failure::argument("more bytes than a process can have"));
        }
        with(endpoint, |of| {
            let region = of.fabric().register(length as u64)?;
            memory.set(kept(endpoint, region)?);
            Ok(WEFT_OK)
        })
    })
}

/// Makes memory of the program known to an endpoint, in the way of a weft_memory_kind. It stays
/// mapped for reading and writing, at its place, until weft_memory_free has ended well or the
/// endpoint is closed.
///
/// One thread at a time. Errors: WEFT_ERROR_ARGUMENT if a part is not mapped, WEFT_ERROR_ALIGNMENT
/// if WEFT_MEMORY_ADOPT is no whole pages, WEFT_ERROR_LIMIT, WEFT_ERROR_SYSTEM, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_register(
    endpoint: *mut weft_endpoint,
    start: *mut c_void,
    length: usize,
    kind: u32,
    memory: *mut *mut weft_memory,
) -> c_int {
    call(|| {
        let memory = Out::needed(memory, "memory")?;
        let Some(base) = NonNull::new(start.cast::<u8>()) else {
            return Err(pointers::null("address"));
        };
        let adopts = match kind {
            kind if kind == weft_memory_kind::WEFT_MEMORY_IN_PLACE as u32 => false,
            kind if kind == weft_memory_kind::WEFT_MEMORY_ADOPT as u32 => true,
            _ => return Err(Failure::argument(format!("{kind} is no kind of memory"))),
        };
        if !pointers::is_mapped(base, length) {
            let text = format!("{length} bytes at {base:?} are not all mapped; register what is");
            return Err(Failure::argument(text));
        }
        with(endpoint, |of| {
            let made = match adopts {
                // SAFETY: the header has the program promise this.
                true => unsafe { Memory::adopt(base, length) },
                // SAFETY: as before. Bytes in place are read and written by the kernel or by calls
                // of the program alone, and no reference to them is made here.
                false => unsafe { Memory::in_place(base, length) },
            };
            let region = of.fabric().register_memory(&made.map_err(not_made)?)?;
            memory.set(kept(endpoint, region)?);
            Ok(WEFT_OK)
        })
    })
}

fn not_made(error: SegmentError) -> Failure {
    let status = match error {
        SegmentError::Misaligned { .. } => WEFT_ERROR_ALIGNMENT,
        _ => WEFT_ERROR_SYSTEM,
    };
    Failure::new(status, error.to_string())
}

/// Puts a region into the table.
fn kept(endpoint: *mut weft_endpoint, region: AnyRegion) -> Result<*mut weft_memory, Failure> {
    let endpoint = pointers::handle(endpoint);
    let memory = MemoryObject { region, endpoint, keys: Mutex::default() };
    Ok(pointers::to_handle(MEMORIES.insert(memory)?))
}

/// Revokes all keys to a memory and ends it. When it has ended well, no byte of a peer appears in
/// it any more; memory of the library is unmapped, that of the program is the program's again. Its
/// endpoint may be closed before.
///
/// One thread at a time, that of the endpoint. It waits for at most timeout_ms milliseconds for
/// each key. Errors: WEFT_ERROR_STILL_WRITING: all keys are void, but the bytes must stay mapped
/// until weft_close; WEFT_ERROR_HANDLE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_free(memory: *mut weft_memory, timeout_ms: c_int) -> c_int {
    call(|| {
        let timeout = limit(timeout_ms)?;
        let handle = pointers::handle(memory);
        let owner = MEMORIES.shared(handle, |memory| Ok(memory.endpoint))?;
        let revoked = with(pointers::to_handle(owner), |endpoint| {
            MEMORIES.shared(handle, |memory| {
                let keys = memory.keys.lock().clone();
                keys.into_iter().try_for_each(|key| revoke(endpoint, memory, key, timeout))
            })
        });
        match revoked {
            // The endpoint is closed, and its keys are void.
            Err(failure) if failure.status == WEFT_ERROR_HANDLE => {}
            revoked => revoked?,
        }
        drop(MEMORIES.remove(handle)?);
        Ok(WEFT_OK)
    })
}

/// Revokes a key. It stays with the memory if a peer may still write by it.
fn revoke(
    endpoint: &mut EndpointObject,
    memory: &MemoryObject,
    key: RemoteKey,
    timeout: Option<Duration>,
) -> Result<(), Failure> {
    let revoked = match endpoint.fabric().revoke(key, OWN_CONTEXT) {
        Ok(issued) => ended(endpoint, issued, timeout).map(|_| ()),
        // It was void before. The second try for a peer that was still writing ends so.
        Err(GrantError::UnknownKey) => match endpoint.still_written.contains(&key) {
            true => Err(GrantError::StillWriting { peer: endpoint.fabric().address() }.into()),
            false => Ok(()),
        },
        Err(error) => Err(error.into()),
    };
    match revoked {
        Err(failure) if failure.status == crate::types::weft_status::WEFT_ERROR_STILL_WRITING => {
            endpoint.still_written.insert(key);
            Err(failure)
        }
        // The key is void, whether the daemon has heard of it or not.
        Ok(()) => {
            memory.keys.lock().retain(|other| *other != key);
            Ok(())
        }
        Err(failure) if failure.status == crate::types::weft_status::WEFT_ERROR_TIMEOUT => {
            memory.keys.lock().retain(|other| *other != key);
            Ok(())
        }
        other => other,
    }
}

/// The address of a memory in this process; NULL for a bad handle, with weft_last_error. Peers may
/// write to it at any time: read it by atomics or after a notification. While a key to the memory
/// is being revoked, what is written by address may be lost.
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_address(memory: *const weft_memory) -> *mut c_void {
    let found = MEMORIES.shared(pointers::handle(memory), |memory| {
        Ok(memory.region.base().as_ptr().cast::<c_void>())
    });
    found.unwrap_or_else(|failure| {
        failed(failure);
        std::ptr::null_mut()
    })
}

/// Bytes of a memory; 0 for a bad handle, with weft_last_error.
///
/// Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_length(memory: *const weft_memory) -> u64 {
    let found = MEMORIES.shared(pointers::handle(memory), |memory| Ok(memory.region.length()));
    found.unwrap_or_else(|failure| {
        failed(failure);
        0
    })
}

/// Copies bytes out of a memory, also while peers write to it.
///
/// Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_read(
    memory: *const weft_memory,
    offset: u64,
    data: *mut c_void,
    length: usize,
) -> c_int {
    call(|| {
        let data = pointers::bytes_mut(data, length)?;
        MEMORIES.shared(pointers::handle(memory), |memory| {
            memory.region.read(offset, data)?;
            Ok(WEFT_OK)
        })
    })
}

/// Copies bytes into a memory, also during a revocation.
///
/// Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_write(
    memory: *mut weft_memory,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        let data = pointers::bytes(data, length)?;
        MEMORIES.shared(pointers::handle(memory), |memory| {
            memory.region.write(offset, data)?;
            Ok(WEFT_OK)
        })
    })
}

/// Loads a 64-bit word with acquire order.
///
/// Any thread. Errors: WEFT_ERROR_RANGE, WEFT_ERROR_ALIGNMENT, WEFT_ERROR_ARGUMENT,
/// WEFT_ERROR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_load(
    memory: *const weft_memory,
    offset: u64,
    value: *mut u64,
) -> c_int {
    call(|| {
        let value = Out::needed(value, "value")?;
        MEMORIES.shared(pointers::handle(memory), |memory| {
            value.set(memory.region.load(offset)?);
            Ok(WEFT_OK)
        })
    })
}

/// Stores a 64-bit word with release order.
///
/// Any thread. Errors: as weft_memory_load.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_store(memory: *mut weft_memory, offset: u64, value: u64) -> c_int {
    call(|| {
        MEMORIES.shared(pointers::handle(memory), |memory| {
            memory.region.store(offset, value)?;
            Ok(WEFT_OK)
        })
    })
}

/// Grants peers access to length bytes of a memory from offset on. access has bits of weft_access.
/// The key is for one peer in this life of it, or, with WEFT_ANY_PEER, for all endpoints that the
/// own one can meet. Send its bytes to them by any way.
///
/// One thread at a time, that of the endpoint. It waits for at most timeout_ms milliseconds.
/// Errors: WEFT_ERROR_RANGE, WEFT_ERROR_NO_PEER, WEFT_ERROR_LIMIT, WEFT_ERROR_TIMEOUT,
/// WEFT_ERROR_NO_DAEMON, WEFT_ERROR_NETWORK, WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE,
/// WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_grant(
    memory: *mut weft_memory,
    offset: u64,
    length: u64,
    access: u32,
    peer: weft_peer,
    timeout_ms: c_int,
    key: *mut weft_key,
) -> c_int {
    call(|| {
        let key = Out::needed(key, "key")?;
        let timeout = limit(timeout_ms)?;
        let access = u8::try_from(access).ok().and_then(Access::of_key).ok_or_else(|| {
            Failure::argument(format!(
                "access {access:#x} is no grant: give WEFT_READ, WEFT_WRITE or both, and with both \
                 WEFT_ATOMIC"
            ))
        })?;
        let audience = match peer {
            WEFT_ANY_PEER => Audience::Partition,
            peer => Audience::Peer(peer_of(peer)),
        };
        let handle = pointers::handle(memory);
        let owner = MEMORIES.shared(handle, |memory| Ok(memory.endpoint))?;
        with(pointers::to_handle(owner), |endpoint| {
            MEMORIES.shared(handle, |memory| {
                let range = LocalRange::new(&memory.region, offset, length);
                let issued = endpoint.fabric().grant(range, audience, access, OWN_CONTEXT)?;
                let value = ended(endpoint, issued, timeout)?;
                let granted = value.key().ok_or_else(|| unexpected(value))?;
                memory.keys.lock().push(granted);
                let owner = endpoint.fabric().address();
                key.set(Key { owner, access, length, key: granted }.emit());
                Ok(WEFT_OK)
            })
        })
    })
}

/// Revokes a key of a memory. When it has ended, no byte by the key appears any more: each
/// operation by it that ended well is in the memory, and every other ends with an error.
///
/// One thread at a time, that of the endpoint. Errors: WEFT_ERROR_KEY, WEFT_ERROR_STILL_WRITING
/// (see weft_memory_free), WEFT_ERROR_ARGUMENT, WEFT_ERROR_HANDLE, WEFT_ERROR_IN_CALL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_memory_revoke(
    memory: *mut weft_memory,
    key: *const weft_key,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        let (key, timeout) =
            (Key::parse(&pointers::structure(key, "key")?)?.key, limit(timeout_ms)?);
        let handle = pointers::handle(memory);
        let owner = MEMORIES.shared(handle, |memory| Ok(memory.endpoint))?;
        with(pointers::to_handle(owner), |endpoint| {
            MEMORIES.shared(handle, |memory| {
                if !memory.keys.lock().contains(&key) {
                    return Err(GrantError::UnknownKey.into());
                }
                revoke(endpoint, memory, key, timeout).map(|()| WEFT_OK)
            })
        })
    })
}

/// The content of a key: its owner, rights and length. size is sizeof(weft_key_content) of
/// the program. Whether the key is in force shows at its use.
///
/// Any thread. Errors: WEFT_ERROR_KEY, WEFT_ERROR_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn weft_key_read(
    key: *const weft_key,
    content: *mut weft_key_content,
    size: usize,
) -> c_int {
    call(|| {
        let content = Out::needed(content, "content")?;
        known_size(size, size_of::<weft_key_content>())?;
        let Key { owner, access, length, .. } = Key::parse(&pointers::structure(key, "key")?)?;
        let (owner, access) = (address(owner), u32::from(access.bits()));
        content.set_sized(0, size, &weft_key_content { owner, access, reserved: 0, length });
        Ok(WEFT_OK)
    })
}
