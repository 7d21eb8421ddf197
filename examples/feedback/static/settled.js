// What is shown of place and wait: calm, while the numbers behind it move.

const RISE = 1.15;

// A place in the line never rises again, even when somebody who had to wait for another try comes
// back before us. A wait may fall at any time, but rises only when it has grown by more than 15 %.
export function settled(before, now) {
  return { place: place(before?.place ?? null, now.place), wait: wait(before?.wait ?? null, now.wait) };
}

function place(before, now) {
  return now === null || before === null ? now : Math.min(before, now);
}

function wait(before, now) {
  if (now === null || before === null || now <= before || now > before * RISE) return now;
  return before;
}

// "noch etwa 40 Sekunden", "noch etwa 3 Minuten": as exact as one can promise.
export function duration(seconds) {
  if (seconds <= 55) {
    const tens = Math.max(1, Math.ceil(seconds / 10)) * 10;
    return `${tens} Sekunden`;
  }
  const minutes = Math.round(seconds / 60) || 1;
  if (minutes < 60) return minutes === 1 ? "1 Minute" : `${minutes} Minuten`;
  const hours = Math.round(minutes / 60);
  return hours === 1 ? "1 Stunde" : `${hours} Stunden`;
}

export function sentence({ place, wait }) {
  if (place === null) return null;
  const where = place === 1 ? "Du bist als Nächstes dran" : `Platz ${place} in der Warteschlange`;
  return wait === null ? where : `${where}, noch etwa ${duration(wait)}`;
}
