// Texts in the language of the page; texts of the page itself come first.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;

export class Language {
  #sources;
  #tag;

  /** `tag`: as in `lang`; `sources`: texts, by language or without one, in order of precedence. */
  constructor(tag, sources) {
    const name = isTag(tag) ? tag.toLowerCase().split("-")[0] : "en";
    const isSpoken = sources.some((source) => source?.[name]);
    this.name = isSpoken ? name : "en";
    this.#tag = isSpoken && isTag(tag) && tag.includes("-") ? tag : regional(this.name);
    this.#sources = sources;
  }

  text(key, values = {}) {
    const text = this.#find(key);
    if (typeof text === "function") return String(text(values));
    const form = typeof text === "object" ? this.#plural(text, values.count) : text;
    return form.replace(/\{(\w+)\}/g, (_, name) => this.#write(values[name]));
  }

  knows(key) {
    return this.#find(key) !== "";
  }

  /** The time of a moment, with the day unless it is today. */
  moment(at, now) {
    const isToday = new Date(at).toDateString() === new Date(now).toDateString();
    const form = isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" };
    return new Intl.DateTimeFormat(this.#tag, form).format(at);
  }

  /** An ETA, rounded to what is known. */
  wait(seconds) {
    if (seconds < 15) return this.text("time.seconds");
    if (seconds < 50) return this.text("time.below_minute");
    if (seconds < 1.5 * MINUTE) return this.text("time.minute");
    if (seconds < 10 * MINUTE) return this.#range(seconds / MINUTE, "time.minute");
    if (seconds < 55 * MINUTE) {
      return this.text("time.minutes", { n: 5 * Math.round(seconds / MINUTE / 5) });
    }
    if (seconds < 1.5 * HOUR) return this.text("time.hour");
    if (seconds < DAY) return this.#range(seconds / HOUR, "time.hour");
    return this.text("time.day");
  }

  /** An elapsed time, exact, because people watch it grow. */
  length(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < MINUTE) return `${whole} s`;
    if (whole < HOUR) return `${Math.floor(whole / MINUTE)} min ${whole % MINUTE} s`;
    return `${Math.floor(whole / HOUR)} h ${Math.floor((whole % HOUR) / MINUTE)} min`;
  }

  #range(n, key) {
    const near = Math.abs(n - Math.round(n)) <= 0.25;
    if (near) return this.text(`${key}s`, { n: Math.round(n) });
    return this.text(`${key}_range`, { n: Math.floor(n), m: Math.ceil(n) });
  }

  #find(key) {
    for (const source of this.#sources) {
      const text = source?.[this.name]?.[key] ?? source?.[key];
      if (text !== undefined && text !== null) return text;
    }
    for (const source of this.#sources) if (source?.en?.[key]) return source.en[key];
    return "";
  }

  #plural(forms, count) {
    return forms[new Intl.PluralRules(this.#tag).select(Number(count))] ?? forms.other ?? "";
  }

  #write(value) {
    if (typeof value === "number") return new Intl.NumberFormat(this.#tag).format(value);
    return value === undefined || value === null ? "" : String(value);
  }
}

/** The nearest `lang`, also outside of the enclosing shadow trees. */
export function languageOf(element) {
  for (let at = element; at; at = at.getRootNode().host) {
    const element = at.closest("[lang]");
    if (element) return element.getAttribute("lang");
  }
  return "en";
}

/** For a page in "en", the reader's region decides between 5 pm and 17:00. */
function regional(name) {
  return navigator.languages.find((tag) => tag.toLowerCase().startsWith(`${name}-`)) ?? name;
}

function isTag(tag) {
  try {
    return Intl.getCanonicalLocales(tag).length === 1;
  } catch {
    return false;
  }
}
