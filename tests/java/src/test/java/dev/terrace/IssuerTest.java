package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.arrow.driver.jdbc.utils.ArrowFlightConnectionConfigImpl.ArrowFlightConnectionProperty;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Logins by tokens of the issuer that TERRACE_TEST_ISSUER names (tests/python/issuer.py), at the server of {@link UserTest}. */
class IssuerTest {
  private static final String URL =
      "jdbc:arrow-flight-sql://" + System.getenv("TERRACE_TEST_CLOSED_ADDRESS") + "/?useEncryption=false";

  @BeforeAll
  static void makeUser() throws SQLException {
    Properties ada = new Properties();
    ada.setProperty("user", "ada");
    ada.setProperty("password", "lace");
    try (Connection connection = DriverManager.getConnection(URL, ada);
        Statement statement = connection.createStatement()) {
      statement.executeUpdate("CREATE USER ann PASSWORD 'correct horse'");
    }
  }

  /** A token by the flow of client credentials (RFC 6749, section 4.4). */
  private static String token(String client) throws Exception {
    String secret = URLEncoder.encode("secret of the client", StandardCharsets.UTF_8);
    String form = "grant_type=client_credentials&client_id=" + client + "&client_secret=" + secret;
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(System.getenv("TERRACE_TEST_ISSUER") + "/token"))
            .version(HttpClient.Version.HTTP_1_1)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .POST(HttpRequest.BodyPublishers.ofString(form))
            .build();
    HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    assertEquals(200, answer.statusCode(), answer.body());
    Matcher found = Pattern.compile("\"access_token\": *\"([^\"]+)\"").matcher(answer.body());
    assertTrue(found.find(), answer.body());
    return found.group(1);
  }

  private static String user(String token) throws SQLException {
    Properties properties = new Properties();
    properties.setProperty("token", token);
    try (Connection connection = DriverManager.getConnection(URL, properties);
        Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT current_user")) {
      assertTrue(rows.next());
      return rows.getString(1);
    }
  }

  @Test
  void aTokenOfTheIssuerIsALogin() throws Exception {
    assertEquals("ann", user(token("ann")));
  }

  @Test
  void aTokenForNobodyAndADamagedOneAreNone() throws Exception {
    String nobody = token("nobody");
    assertThrows(SQLException.class, () -> user(nobody));
    String token = token("ann");
    String damaged = token.substring(0, token.length() - 8) + "AAAAAAAA";
    assertThrows(SQLException.class, () -> user(damaged));
  }

  /** A driver that has flows of its own logs in by itself: then they are tested here, as tests/python/test_oidc.py does. */
  @Test
  void theDriverHasNoFlowsOfItsOwn() {
    for (ArrowFlightConnectionProperty property : ArrowFlightConnectionProperty.values()) {
      assertFalse(property.camelName().startsWith("oauth"), property.camelName());
    }
  }
}
