-- Removes keys and passwords from the text of an error before it is stored. security/redaction.py
-- knows the same forms, for the errors of workers, and says what each is. This function is for
-- errors from elsewhere: a worker in another language, plain SQL, an older program.

create or replace function penstock._redacted(p_text text) returns text
language plpgsql immutable parallel safe strict set search_path = pg_catalog, pg_temp
as $$
declare
  v_gone constant text := '[redacted]';
  v_kept constant text := $r$\1[redacted]$r$;
  v_begin constant text := $r$(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt]))$r$;
  v_keys constant text := array_to_string(array[
    $r$sk-[A-Za-z0-9_*-]{6,}$r$,
    $r$[rsp]k_(?:live|test)_[A-Za-z0-9]{6,}$r$,
    $r$(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}$r$,
    $r$AIza[A-Za-z0-9_-]{6,}$r$,
    $r$ya29(?:\.[A-Za-z0-9_-]+)+$r$,
    $r$GOCSPX-[A-Za-z0-9_-]{6,}$r$,
    $r$gh[oprsu]_[A-Za-z0-9]{6,}$r$,
    $r$github_pat_[A-Za-z0-9_]{6,}$r$,
    $r$glpat-[A-Za-z0-9_-]{6,}$r$,
    $r$xox[a-z]-[A-Za-z0-9-]{6,}$r$,
    $r$xapp-[A-Za-z0-9-]{6,}$r$,
    $r$hf_[A-Za-z0-9]{6,}$r$,
    $r$(?:gsk|r8|fw|npm)_[A-Za-z0-9]{16,}$r$,
    $r$(?:xai|pplx|nvapi)-[A-Za-z0-9_-]{16,}$r$,
    $r$dapi[0-9a-f]{32}$r$,
    $r$SG(?:\.[A-Za-z0-9_-]{6,})+$r$,
    $r$whsec_[A-Za-z0-9+/=_-]{6,}$r$,
    $r$p[std]_[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]+)*$r$,
    $r$eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]+)*$r$
  ], '|');
  v_named constant text := '(?i)((?:' || array_to_string(array[
    $r$(?:api|access|secret|private|account|auth|subscription|master|signing|encryption)$r$
      || $r$[_-]?key(?:[_-]?id)?$r$,
    $r$(?<![A-Za-z])pass$r$,
    $r$passw(?:or)?d$r$,
    $r$passphrase$r$,
    $r$(?<![A-Za-z])pwd$r$,
    $r$secret$r$,
    $r$token$r$,
    $r$credentials?$r$,
    $r$session[_-]?id$r$,
    $r$signature$r$
  ], '|') || $r$)["']?\s{0,3}$r$;
begin
  p_text := regexp_replace(p_text, $r$-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]*$r$
    || $r$(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?$r$, v_gone, 'g');
  p_text := regexp_replace(p_text,
    $r$(?i)((?:authorization|cookie|x-api-key)["']?\s{0,3}[:=]\s{0,3}(?:b(?=["']))?["']?)$r$
    || $r$[^\s"',}\[][^\n"',}]*$r$, v_kept, 'g');
  p_text := regexp_replace(p_text, v_begin || '(?:' || v_keys || ')', v_gone, 'g');
  p_text := regexp_replace(p_text, $r$([Bb]earer|BEARER|[Bb]asic|BASIC)\s{1,3}$r$
    || $r$(?:(?=[A-Za-z._~+/=*-]{0,100}[0-9])|(?=[A-Za-z._~+/=*-]{0,100}[a-z][A-Z])$r$
    || $r$|(?=[A-Za-z._~+/=*-]{20}))[A-Za-z0-9._~+/=*-]{6,}$r$, $r$\1 [redacted]$r$, 'g');
  p_text := regexp_replace(p_text, $r$(?i)([?&](?:key|sig|auth|code)=)[^\s"'&<>\[]+$r$,
    v_kept, 'g');
  p_text := regexp_replace(p_text, $r$(://)[^\s/?#"'<>\[]+@$r$, $r$\1[redacted]@$r$, 'g');
  if p_text ~* 'key|pass|pwd|secret|token|credential|session|signature' then
    p_text := regexp_replace(p_text,
      v_named || $r$[=:]>?\s{0,3})b?(?:"[^"]*"?|'[^']*'?)$r$, v_kept, 'g');
    p_text := regexp_replace(p_text, v_named || $r$=\s{0,3})[^\s"',;&()\[\]{}<>]+$r$, v_kept, 'g');
    p_text := regexp_replace(p_text,
      v_named || $r$:\s{0,3})(?=[^\s"',;&()\[\]{}<>0-9]{0,100}[0-9])[^\s"',;&()\[\]{}<>]{6,}$r$,
      v_kept, 'g');
  end if;
  return p_text;
end
$$;
