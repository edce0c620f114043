"""
Secrets that are known by their place: options of common tools, directives of common servers' files.

This file imports its neighbours probe_*.py and runs on Python 3.6 and later with the standard library only.
"""

import re

if __package__:
    from .probe_names import MARKS, MASK, OPAQUE, words_of
    from .probe_work import Work, any_of, lower, replaced
else:
    from probe_names import MARKS, MASK, OPAQUE, words_of
    from probe_work import Work, any_of, lower, replaced

_TOOL_OPTIONS = {
    "-u --user --proxy-user": "curl wget http https xh",
    "-p": "sshpass docker podman nerdctl helm mongo mongosh mongodump rabbitmqadmin az oc skopeo buildah lftp",
    "-p+": "mysql mysqldump mysqladmin mariadb mariadb-dump mysqlimport sshpass 7z 7za unrar rar",
    "-a": "redis-cli valkey-cli keydb-cli",
    "-w": "ldapsearch ldapadd ldapmodify ldapwhoami ldapdelete",
    "-P": "ipmitool mosquitto_pub mosquitto_sub zip unzip sqlcmd bcp isql",
    "-c": "snmpwalk snmpget snmpset snmpbulkwalk",
    "-U": "smbclient rpcclient smbget",
    "-A -X": "snmpwalk snmpget snmpset",
    "login": "wandb vault",
}
USERS = ("-u", "--user", "-U", "--proxy-user")
BY_TOOL = {}
for _options, _tools in _TOOL_OPTIONS.items():
    for _tool in _tools.split():
        BY_TOOL.setdefault(_tool, []).extend(_options.split())
LOGINS = frozenset(words_of("docker podman nerdctl helm skopeo buildah az oc"))
_TOOL = re.compile(
    "(%s)" % any_of({tool: r"(?<![\w.\-]%s)(?=[\"'\\ \t])" % re.escape(tool) for tool in BY_TOOL}) + r"([^\n|;]{2,})"
)
_OPTION_VALUE = r"((?:\[masked\]|\[withheld:too-much-to-mask\]|[^\s\"',\\\]]){1,4096})"
_SIGNS = (" -", '"-', "'-", "\t-", "login")
_CUT = r"([\"'\\, \t=]{1,8})" + _OPTION_VALUE
_CONFIGURED = re.compile(
    r"((?:r[ow]community6?|requirepass|masterauth|createuser)[ \t]{1,64})([^\s\"']+)"
    r"|(identified[ \t]{1,64}by[ \t]{1,64}(?:password[ \t]{1,64})?\\{0,16}[\"'])([^\"'\\\n]+)"
)


def _behind_blank(option):
    return option + r"(?<=[\"' \t]%s)" % re.escape(option)


def _option_pattern(option):
    if option.endswith("+"):
        return re.compile("(%s)" % _behind_blank(option[:-1]) + "()" + _OPTION_VALUE)
    return re.compile("(%s)" % _behind_blank(option) + _CUT)


_PATTERNS = {option: _option_pattern(option) for options in BY_TOOL.values() for option in options}


def _mask_tool(match, work):
    """Mask the values of a tool's options on the rest of its line."""
    rest = match.group(2)
    if match.group(1) in LOGINS and "login" not in rest:
        return match.group()
    for option in BY_TOOL[match.group(1)]:
        here = Work(work.left)
        rest = here.whole(replaced(_PATTERNS[option], _option_masked, rest, here))
        work.left = max(0, here.left)
    return match.group(1) + rest


def _option_masked(found):
    option = found.group(1)
    value = found.group(3)
    if value.startswith((*MARKS, "-", "$")) or (option in USERS and not re.match("[^:%]*[:%](?!//)", value)):
        return found.group()
    if option == "login" and not OPAQUE.match(value):
        return found.group()
    name = re.match(r"[^:%]*[:%]", value).group() if option in USERS else ""
    if value[len(name) :] in MARKS:
        return found.group()
    return found.group(1) + found.group(2) + name + MASK


def mask_tools(text, work):
    """Mask what common tools and the files of common servers are given."""
    if any(sign in text for sign in _SIGNS):
        text = replaced(_TOOL, lambda match: _mask_tool(match, work), text, work)
    low = lower(text)
    if any(word in low for word in ("community", "requirepass", "masterauth", "createuser", "identified")):
        text = replaced(_CONFIGURED, lambda match: _mask_configured(match, text), text, work, low)
    return text


def _mask_configured(match, text):
    kept = 1 if match.group(1) else 3
    value = text[match.start(kept + 1) : match.end(kept + 1)]
    return text[match.start() : match.end(kept)] + (value if any(mark in value for mark in MARKS) else MASK)
