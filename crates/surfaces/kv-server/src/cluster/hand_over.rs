//! A primary makes a backup the primary: since it was asked to, since its node ends or its device
//! failed, or since the node that is the primary when it can is back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_kv::node::Failover;
use weft_kv::replication::primary::Peer;
use weft_kv::store::Store;

use super::control::{Control, Leading};
use super::reign::Reign;

/// How long a primary that hands over waits for its heir.
const HANDED_WITHIN: Duration = Duration::from_secs(1);
/// The home of a region becomes its primary when it was in sync for so many leases.
const HOME_AFTER_LEASES: u32 = 4;
/// How long it may take to have all writes: else it is tried again later.
const HOME_WITHIN: Duration = Duration::from_millis(300);

/// Why a primary hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A user asked: the region stays where it goes.
    Asked,
    /// The node ends, or its device failed.
    Leaves,
    /// The home of the region is in sync again.
    Home,
}

/// A primary that makes another node the primary. It takes no writes meanwhile.
pub(super) struct Handing {
    how: Failover,
    cause: Cause,
    /// When it gives up, or goes on by force.
    until: Duration,
    /// Whether it served before.
    served: bool,
}

impl<S: Copy + PartialEq> Control<S> {
    /// Begins to make a backup that has everything the primary. No write is taken from now on;
    /// those that were wait for their backups.
    pub(super) fn begin_hand_over(&mut self, how: Failover, cause: Cause) {
        let until = (self.now)() + how.within.unwrap_or(HANDED_WITHIN);
        if let Some(leading) = &mut self.leading
            && leading.handing.is_none()
        {
            let served = leading.reign.serves.swap(false, Ordering::AcqRel);
            leading.handing = Some(Handing { how, cause, until, served });
            self.shared.aborts_failover.store(false, Ordering::Release);
            self.shared.is_handing_over.store(true, Ordering::Release);
        }
    }

    /// One step of handing over. True while it goes on.
    pub(super) fn hand_over(&mut self) -> bool {
        let Some(Leading { reign, handing: Some(handing), .. }) = &self.leading else {
            return false;
        };
        let Handing { how, cause, until, served } = handing;
        let (reign, cause, served) = (Arc::clone(reign), *cause, *served);
        let is_late = (self.now)() > *until || reign.court.is_over();
        let is_aborted = self.shared.aborts_failover.load(Ordering::Acquire);
        let order = self.record.preferred();
        let heir = heir(&reign, how, &order, is_late).filter(|_| !is_aborted);
        if heir.is_none() && !is_late && !is_aborted {
            return true;
        }
        let (epoch, me) = (reign.court.epoch, self.me);
        let handed = heir.map(|heir| {
            self.change(|record| {
                let may = record.hand_over(me, epoch, heir);
                if may && cause == Cause::Asked {
                    record.settle_down();
                }
                may
            })
        });
        match handed {
            // It may have been carried out: the record says it.
            Some(Ok(true) | Err(_)) => reign.court.end(),
            Some(Ok(false)) | None => reign.serves.store(served, Ordering::Release),
        }
        if let Some(leading) = &mut self.leading {
            leading.handing = None;
        }
        self.shared.is_handing_over.store(false, Ordering::Release);
        false
    }

    /// Begins to make the home of the region its primary, if that was in sync for some time.
    pub(super) fn go_home(&mut self) {
        let (now, after) = ((self.now)(), self.lease * HOME_AFTER_LEASES);
        let Some(home) = self.record.home.filter(|home| *home != self.me) else { return };
        let Some(leading) = &mut self.leading else { return };
        let reign = &leading.reign;
        let is_back = reign.serves.load(Ordering::Acquire)
            && reign.court.is_whole()
            && reign.court.heir(0, Some(home)).is_some();
        let since = leading.home_since.filter(|_| is_back).or(is_back.then_some(now));
        leading.home_since = since;
        if since.is_some_and(|since| now >= since + after) {
            leading.home_since = None;
            let to = Some(home as usize);
            let how = Failover { to, within: Some(HOME_WITHIN), is_forced: false };
            self.begin_hand_over(how, Cause::Home);
        }
    }
}

/// The backup that becomes the primary: it has all that was written here. By force, after its time,
/// one in sync that lacks what was not answered yet.
fn heir(reign: &Reign, how: &Failover, order: &[Peer], is_late: bool) -> Option<Peer> {
    let (newest, court) = (reign.engine.newest(), &reign.court);
    let is_failed = reign.engine.failure().is_some();
    let is_safe = is_failed
        || (reign.engine.write_out(newest).is_ok()
            && matches!(court.outcome(newest.0), Some(Ok(()))));
    let wanted = how.to.and_then(|place| Peer::try_from(place).ok());
    let with = |lsn| match wanted {
        Some(_) => court.heir(lsn, wanted),
        None => order.iter().find_map(|peer| court.heir(lsn, Some(*peer))),
    };
    let whole = with(newest.0).filter(|_| is_safe && court.is_whole());
    whole.or_else(|| with(0).filter(|_| how.is_forced && is_late))
}
