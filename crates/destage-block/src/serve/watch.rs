//! Cache files that are cut, removed or replaced under the running server: found within a second, told, and the volume brought
//! to the origin as long as its log can still be read.

use super::Served;
use super::server::Server;
use destage_core::Time;
use destage_engine::Drive;
use destage_runtime::watch::Tampering;

impl Server {
    /// Looks at the cache files if it is time to. Whatever time it takes, it is one look at each in a second.
    pub(super) fn watch_caches(&mut self) {
        let now = self.now();
        for index in 0..self.volumes.len() {
            let served = &mut self.volumes[index];
            let Some(found) = served.watch.look_if_due(now) else { continue };
            found_tampered(served, &found, now);
            // What is sent together needs all of the group.
            let group = self.volumes[index].group.clone();
            let mates =
                self.volumes.iter_mut().filter(|mate| group.is_some() && mate.group == group);
            mates.for_each(|mate| mate.volume.hurry(now));
        }
    }
}

fn found_tampered(served: &mut Served, found: &Tampering, now: Time) {
    tracing::error!(
        volume = served.name,
        cache = served.cache,
        undecided = served.volume.undecided(),
        "the cache's file {found} while it was in use: writes and flushes fail from now on, and what the cache holds is sent to \
         the origin as long as it can be read. Then end the server and give it a sound cache; \
         'destage block policy write-through' takes writes meanwhile"
    );
    served.volume.lose_cache(now);
}
