// The texts of <penstock-job> for pupils: simpler than its own, with "du".

const SAFE = "Deine Abgabe ist sicher und wird automatisch ausgewertet.";

// `shownPosition`: maps a position to the one to show, which never rises on the page, even when a
// job that backed off gets a position in front of this one.
export function texts({ shownPosition }) {
  return {
    connecting: "Einen Moment …",
    reconnecting:
      "Die Seite ist gerade nicht verbunden. Deine Abgabe ist sicher; wir versuchen es weiter.",
    offline: "Du bist gerade offline. Deine Abgabe ist sicher; danach geht es hier weiter.",
    queued: "Abgegeben",
    position: ({ position }) => {
      const shown = shownPosition(position);
      return shown === 1 ? "Du bist als Nächstes dran" : `Platz ${shown} in der Warteschlange`;
    },
    due: "Du bist gleich dran",
    running: "Wird gerade ausgewertet …",
    backoff: "Das hat noch nicht geklappt. Ab {time} Uhr bist du wieder an der Reihe.",
    backoff_note: "Wir versuchen es automatisch noch einmal.",
    recovering: "Das wurde unterbrochen. Ab {time} Uhr bist du wieder an der Reihe.",
    recovering_note: "Du musst nichts tun.",
    circuit_open: `Die KI ist gerade nicht erreichbar. ${SAFE}`,
    circuit_open_since: `Die KI ist seit {time} Uhr nicht erreichbar. ${SAFE}`,
    rate_limit: `Die KI hat gerade viel zu tun. ${SAFE}`,
    paused: `Die Auswertung macht gerade Pause. ${SAFE}`,
    no_worker: `Die Auswertung läuft gerade noch nicht. ${SAFE}`,
    stale: "Das dauert heute länger als sonst. Du musst nichts tun, wir bleiben dran.",
    cancel: "Zurückziehen",
    cancelling: "Wird zurückgezogen …",
    cancel_failed: "Das hat nicht geklappt. Versuch es noch einmal.",
    cancelled: "Zurückgezogen",
    succeeded: "Deine Rückmeldung ist da.",
    failed: "Das hat leider nicht geklappt.",
    gone: "Zu dieser Abgabe gibt es nichts Neues. Lade die Seite neu.",
    unauthorized: "Lade die Seite neu, um zu sehen, wie es weitergeht.",
  };
}
