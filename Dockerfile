# Assay on the CPU. Checked by hadolint; nobody has built it yet. `docker build -t assay .`, then
#   docker run --rm -v "$PWD/runs:/home/assay/runs" assay train --preset best --data digits --epsilon 3 --out runs/digits
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt --no-deps --index-url https://download.pytorch.org/whl/cpu torch \
    && pip install --no-cache-dir --constraint constraints.txt . \
    && useradd --create-home --uid 1000 assay \
    && mkdir -p /home/assay/runs \
    && chown -R assay /home/assay

USER 1000
WORKDIR /home/assay
ENTRYPOINT ["assay"]
CMD ["--help"]
