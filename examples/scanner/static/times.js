// One clock for all pages: that of <penstock-job>, in the language of the page.

export function time(moment) {
  const then = new Date(moment);
  const isToday = then.toDateString() === new Date().toDateString();
  const form = isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" };
  return new Intl.DateTimeFormat(document.documentElement.lang, form).format(then);
}
