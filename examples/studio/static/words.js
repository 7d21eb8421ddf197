// Numbers and times as text.

export function credits(number) {
  return number === 1 ? "1 credit" : `${number} credits`;
}

export function localTime(moment) {
  return new Date(moment).toLocaleTimeString(document.documentElement.lang, { hour: "2-digit", minute: "2-digit" });
}

// Rounded up, because an earlier minute would be too early.
export function localTimeAfter(moment) {
  return localTime(Math.ceil(new Date(moment).getTime() / 60_000) * 60_000);
}

export function localDay(moment) {
  const then = new Date(moment);
  const today = then.toDateString() === new Date().toDateString();
  const day = then.toLocaleDateString(document.documentElement.lang, { day: "numeric", month: "long" });
  return today ? localTime(moment) : `${day}, ${localTime(moment)}`;
}
