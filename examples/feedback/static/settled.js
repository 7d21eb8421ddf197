// What is shown of place and wait: calm, while the numbers behind it move.

const RISE = 1.15;

// A place in the line never rises again, even when somebody who had to wait for another try comes
// back before us. A wait may fall at any time, but rises only when it has grown by more than 15 %.
export function settled(before, now) {
  // Kept also while no place is shown, as during an outage.
  const lowest = Math.min(before?.lowest ?? Infinity, now.place ?? Infinity);
  return {
    lowest,
    place: now.place === null ? null : lowest,
    wait: wait(before?.wait ?? null, now.wait),
  };
}

function wait(before, now) {
  if (now === null || before === null || now <= before || now > before * RISE) return now;
  return before;
}

// "noch etwa 40 Sekunden", "noch etwa 3 Minuten": as exact as one can promise.
export function duration(seconds) {
  if (seconds <= 50) return `${Math.max(1, Math.ceil(seconds / 10)) * 10} Sekunden`;
  const minutes = Math.max(1, Math.round(seconds / 60));
  if (minutes < 60) return minutes === 1 ? "1 Minute" : `${minutes} Minuten`;
  const hours = Math.round(minutes / 60);
  return hours === 1 ? "1 Stunde" : `${hours} Stunden`;
}

export function sentence({ place, wait }) {
  if (place === null) return null;
  const where = place === 1 ? "Du bist als Nächstes dran" : `Platz ${place} in der Warteschlange`;
  return wait === null ? where : `${where}, noch etwa ${duration(wait)}`;
}
