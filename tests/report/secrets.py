"""Twenty kinds of secrets, made up, and where they are found."""

from __future__ import annotations

SECRETS = {
    "Hugging Face": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm12345678",
    "OpenAI": "sk-proj-0a1b2c3d4e5f6g7h8i9j0k1l2m3n",
    "GitHub": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "GitHub fine-grained": "github_pat_11ABCDEFG0aBcDeFgHiJkL_mNoPqRsTuVwXyZ",
    "GitLab": "glpat-AbCdEfGhIjKlMnOpQrSt",
    "Slack": "xoxb-123456789012-abcdefghijklmnop",
    "NVIDIA": "nvapi-ZyXwVuTsRqPoNmLkJiHgFeDcBa9876543210",
    "AWS key id": "AKIAIOSFODNN7EXAMPLE",
    "AWS secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLXdvcmRz",
    "basic": "dXNlcjpjb3JyZWN0aG9yc2U=",
    "password": "correct-horse-battery",
    "in an address": "ba77ery-st4ple",
    "in a query": "q53ry-s3cr3t-value",
    "option": "0pt10n-k3y-value",
    "cookie": "c00k1e-session-value",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "Telegram": "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1",
    "Stripe": "sk_live_51H8s7d6f5g4h3j2k1l0",
}

TEXTS = {
    "environment": (
        f"HF_TOKEN={SECRETS['Hugging Face']}\nOPENAI_API_KEY={SECRETS['OpenAI']}\n"
        f"AWS_ACCESS_KEY_ID={SECRETS['AWS key id']}\nAWS_SECRET_ACCESS_KEY={SECRETS['AWS secret']}\n"
        f"NGC_API_KEY={SECRETS['NVIDIA']}\nDB_PASSWORD='{SECRETS['password']}'\n"
    ),
    "unit": (
        f"[Service]\nEnvironment=GITLAB_TOKEN={SECRETS['GitLab']} MODE=a\n"
        f'Environment="STRIPE={SECRETS["Stripe"]}"\n'
        f"ExecStart=/usr/bin/serve --api-key {SECRETS['option']} --port 30000\n"
    ),
    "command line": f"/usr/bin/bot {SECRETS['Telegram']} --user a --password={SECRETS['password']} --tp 4",
    "addresses": (
        f"https://user:{SECRETS['in an address']}@git.example.org/x "
        f"https://example.org/file?user=1&sig={SECRETS['in a query']}&part=2 {SECRETS['Google']}"
    ),
    "journal": (
        f"Nov 29 12:00:00 node serve[1]: Authorization: Basic {SECRETS['basic']}\n"
        f"Nov 29 12:00:01 node serve[1]: Authorization: Bearer {SECRETS['JWT']}\n"
        f"Nov 29 12:00:02 node serve[1]: Set-Cookie: session={SECRETS['cookie']}; Path=/\n"
        f"Nov 29 12:00:03 node serve[1]: cloned with {SECRETS['GitHub']}, posted by {SECRETS['Slack']}\n"
    ),
    "server body": (
        f'{{"model": "m", "api_key": "{SECRETS["option"]}", "usage": {{"total_tokens": 3}},'
        f' "hub": "{SECRETS["GitHub fine-grained"]}", "bos_token": "<s>", "token": "Paris"}}'
    ),
    "file": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRETS['private key']}\n-----END RSA PRIVATE KEY-----\n",
}


def found_in(text: str) -> list[str]:
    """Give the kinds of secrets that a text still holds."""
    return [kind for kind, secret in SECRETS.items() if secret in text]
