package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.junit.jupiter.api.Test;

/** TLS, with the servers that TERRACE_TEST_TLS_ADDRESS and TERRACE_TEST_MUTUAL_ADDRESS name; the second wants certificates of clients. */
class TlsTest {
  private static final String ADDRESS = System.getenv("TERRACE_TEST_TLS_ADDRESS");
  private static final String CA = System.getenv("TERRACE_TEST_TLS_CA");

  private static int answer(String options) throws SQLException {
    return answer(ADDRESS, options);
  }

  private static int answer(String address, String options) throws SQLException {
    String url = "jdbc:arrow-flight-sql://" + address + "/?" + options;
    try (Connection connection = DriverManager.getConnection(url);
        Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT CAST(42 AS INT) AS n")) {
      assertTrue(rows.next());
      return rows.getInt("n");
    }
  }

  @Test
  void connectsWithTheAuthorityOfTheServer() throws SQLException {
    assertEquals(42, answer("useEncryption=true&tlsRootCerts=" + CA));
  }

  @Test
  void refusesAServerOfAnUnknownAuthority() {
    assertThrows(SQLException.class, () -> answer("useEncryption=true"));
  }

  @Test
  void withoutEncryptionThereIsNoAnswer() {
    assertThrows(SQLException.class, () -> answer("useEncryption=false"));
  }

  @Test
  void showsTheCertificateThatAServerWants() throws SQLException {
    String address = System.getenv("TERRACE_TEST_MUTUAL_ADDRESS");
    String folder = System.getenv("TERRACE_TEST_TLS_FOLDER");
    String trusting = "useEncryption=true&tlsRootCerts=" + CA;
    String showing = "&clientCertificate=" + folder + "/server.crt&clientKey=" + folder + "/server.key";
    assertEquals(42, answer(address, trusting + showing));
    assertThrows(SQLException.class, () -> answer(address, trusting));
  }
}
